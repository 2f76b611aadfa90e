// SPDX-License-Identifier: Apache-2.0
// The page's own words in Chinese, by their English text.

/** @type {Record<string, string>} */
export const chinese = {
  // the page
  "Keyboard": "键盘", "light or dark": "浅色或深色", "this list": "本列表", "back to the overview": "返回概览",
  "Answer": "结论", "Operations": "算子", "Modules": "模块", "Overview": "概览", "Errors along the execution": "沿执行顺序的误差",
  "next operation (also ↓)": "下一个算子（也可用 ↓）", "previous operation (also ↑)": "上一个算子（也可用 ↑）",
  "only differences, or all": "仅看差异或全部", "copy": "复制", "language": "语言", "in the graph": "在图中查看", "in the list": "在列表中查看", "search": "搜索", "Search": "搜索", "print": "打印",
  // the graph
  "Graph": "图", "Find": "查找", "Node": "节点", "Nodes": "节点", "Ranks and steps": "rank 与 step", "Layers and ranks": "层与 rank",
  "Graph: arrow keys walk through the boxes, Enter opens, n goes to the next finding": "图：方向键在方框间移动，Enter 展开，n 跳到下一处发现",
  "different": "有差异", "equal": "一致", "not finite": "非有限值", "against": "对比", "Step and rank": "step 与 rank",
  "no difference was found": "未发现差异", "what to do next": "下一步", "all": "全部",
  "{} nodes": "{} 个节点", "{} calls": "{} 次调用", "{} values": "{} 个值", "{} findings": "{} 处发现", "{} found": "找到 {} 个",
  "{} of {} calls differ": "{} / {} 次调用有差异", "{} of {} differ": "{} / {} 有差异", "{} introduced": "{} 处引入", "{} without a partner": "{} 个未匹配",
  "target": "待测侧", "reference": "标杆侧", "target with what only the reference has": "待测侧，并含仅标杆侧有的节点", "only in the reference": "仅标杆侧有",
  "colour by": "着色依据", "status and origin": "状态与起因", "error": "误差", "NaN, Inf and overflow": "NaN、Inf 与溢出", "norm": "范数",
  "gradient norm": "梯度范数", "time order": "执行顺序", "class": "类", "device": "设备", "data type": "数据类型", "no colour": "不着色", "nothing known": "未知",
  "none": "无", "agrees": "一致", "close to": "接近", "inherited": "继承", "amplified": "放大", "unmatched": "未匹配", "introduced": "引入",
  "medium": "中", "high": "高", "critical": "严重", "overflow level": "溢出等级",
  "halves": "方向", "forward and backward": "前向与反向", "forward": "前向", "backward": "反向", "recomputed": "重计算", "parameters_grad": "参数梯度",
  "panes": "视图", "side by side": "并排", "merged": "合并", "flow": "数据流", "values": "数值", "gradients": "梯度", "direction": "方向",
  "micro step": "micro step", "all micro steps": "全部 micro step", "micro step {}": "micro step {}", "depth": "层级", "Depth": "层级",
  "open everything down to a depth": "展开到指定层级", "more": "更多", "views, casts and metadata": "视图、类型转换与元数据操作",
  "roll identical layers up": "折叠相同的层", "values that flow": "显示数据流", "inferred edges as well": "包含推断的边", "map of the whole": "缩略图",
  "both sides move and open together": "两侧同步移动与展开", "SVG, all": "SVG（全部）", "save the picture as SVG": "将画面存为 SVG",
  "save all that is open as SVG": "将全部展开内容存为 SVG", "save the picture as PNG": "将画面存为 PNG", "search (Ctrl-K as well)": "搜索（也可用 Ctrl-K）",
  "zoom in": "放大", "zoom out": "缩小", "left": "向左", "right": "向右", "all of it": "适应窗口", "next finding": "下一处发现", "previous finding": "上一处发现",
  "light what reached the selected node": "高亮选中节点的上游", "light what reached it": "高亮其上游", "light off": "取消高亮",
  "open or close the selected box": "展开或收起选中的方框", "menu of the selected box": "选中方框的菜单", "open": "展开", "open all in it": "全部展开", "close": "收起", "close all in it": "全部收起",
  "go to its partner": "跳到匹配节点", "go to rank {}": "跳到 rank {}", "copy its name": "复制名称", "as at the start": "恢复初始状态", "command": "命令",
  "Width of the panes": "视图宽度", "recorded": "有记录", "same bytes": "字节相同", "same checksum": "校验和相同", "same statistics": "统计量相同",
  "graph of the compiler": "编译器图", "and {} more": "另有 {} 个", "error {}": "误差 {}", "backward {}": "反向 {}", "norm {}": "范数 {}", "gradient norm {}": "梯度范数 {}",
  // the list beside it
  "search, or norm>1e4": "搜索，或 norm>1e4", "name, class, source, or norm>1e4 status:error dir:backward": "名称、类、源码，或 norm>1e4 status:error dir:backward",
  "for example": "例如", "Found": "结果", "filter": "筛选", "error above": "误差大于", "threshold of the error": "误差阈值", "any": "不限", "Nothing fits.": "没有符合条件的节点。",
  "next in the list": "列表中下一个", "previous in the list": "列表中上一个", "match by hand": "手动匹配",
  "Nodes without a partner can be matched here, with all that has the same names in them.": "未匹配的节点可在此匹配，其中名称相同的子节点一并匹配。",
  "choose a node of the other side for {}": "为 {} 选择另一侧的节点", "match the selected node": "匹配选中的节点", "then choose its partner": "然后选择另一侧的节点",
  "match both": "匹配两者", "match with a node of the other side": "与另一侧的节点匹配", "undo the match": "取消匹配", "undo": "撤销", "cancel": "取消",
  "save pairs": "保存匹配", "load pairs": "加载匹配", "{} of {} pairs taken": "已采用 {} / {} 对", "this file holds no pairs": "该文件不含匹配",
  // one node
  "Where differences begin, in order of execution": "差异的起点（按执行顺序）", "Where NaN and Inf begin, in order of execution": "NaN 与 Inf 的起点（按执行顺序）",
  "nothing was found": "未发现问题", "Notes": "说明", "build another graph": "构建另一个图", "align all calls": "对齐所有调用", "from a local server": "通过本地服务器", "partner": "匹配节点", "loading …": "加载中…", "the page holds no values of it": "本页未包含其数值",
  "call stack, {} frames": "调用栈，{} 帧", "group of ranks": "通信组", "Partners in other ranks": "其他 rank 的通信对端", "rank {}": "rank {}", "merged from": "合并自",
  "in it": "包含", "worst in it": "其中最差", "error backward": "反向误差", "matched with confidence": "匹配置信度", "value": "值", "type": "类型", "shape": "形状",
  // the heat maps
  "rank": "rank", "layer": "层", "step {}": "step {}", "step {}, rank {}: {}": "step {}，rank {}：{}", "{}, step {}, rank {}: {}": "{}，step {}，rank {}：{}",
};
