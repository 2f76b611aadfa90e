# SPDX-License-Identifier: Apache-2.0
"""Graphs in text form, in both spellings."""

from __future__ import annotations

NEW = """\
# IR entry: @kernel_graph0
# Total params: 4
%para1_inputs0: <Tensor[Float32], (3, 4)> : [3, 4]  :  <Float32xDefaultFormat>  :  IsWeight: false
%para2_net.fc1.weight: <Ref[Tensor[Float32]], (8, 4), ref_key=net.fc1.weight, is_parameter>
%para3_accum.net.fc1.weight: <Ref[Tensor[Float32]], (8, 4)>  :  has_default
%para4_net.fc_out.weight: <Ref[Tensor[Float32]], (8, 4)>  :  has_default

subgraph @kernel_graph0() {
  %0(equiv_x) = PrimFunc_MatMul(%para1_inputs0, %para2_net.fc1.weight, Bool(0)) {instance name: \
matmul} primitive_attrs: {right_format: "DefaultFormat"} cnode_primal_attrs: {unique_id: "11"}
      : (<Tensor[Float32], (3, 4)>, <Tensor[Float32], (8, 4)>) -> (<Tensor[Float32], (3, 8)>)
      # Fullname with scope: (Default/network-Loss/net-Net/fc1-Dense/MatMul-op1)
      # In file /code/train.py:12~20, 4~19/    def construct(self, *inputs):/
      # In file /code/train.py:14~15, 8~30/        if self.flag:/
      # In file /code/train.py:15, 12~30/            return self.net(*inputs)/
      # In file /lib/nn/basic.py:803~815, 4~16/    def construct(self, x):/
      # In file /lib/nn/basic.py:807, 12~39/        x = self.matmul(x, self.weight)/
  %1(equiv_y) = PrimFunc_BiasAdd(%0, Tensor(shape=[2, 2], dtype=Float32, value=
[[ 1.0 2.0]
 [ 3.0 4.0]])) cnode_primal_attrs: {unique_id: "12"}
      # Fullname with scope: (Default/network-Loss/net-Net/fc1-Dense/BiasAdd-op12)
      # In file /code/train.py:12~20, 4~19/    def construct(self, *inputs):/
      # In file /code/train.py:15, 12~30/            return self.net(*inputs)/
      # In file /lib/nn/basic.py:803~815, 4~16/    def construct(self, x):/
      # In file /lib/nn/basic.py:809, 16~43/        x = self.bias_add(x, self.bias)/
  %2(CNode_3) = PrimFunc_MatMul(%1, %para4_net.fc_out.weight) cnode_primal_attrs: {unique_id: "13"}
      # Fullname with scope: (Default/network-Loss/net-Net/fc_out-Dense/MatMul-op12)
      # In file /code/train.py:18, 12~30/        y = self.fc_out(x)/
  %3(CNode_4) = PrimFunc_MatMul(%2, %0) cnode_primal_attrs: {forward_node_name: "MatMul_11", \
forward_unique_id: "11"}
      # Fullname with scope: (Gradients/Default/network-Loss/net-Net/fc1-Dense/Grad_MatMul\
/MatMul-op2)
      # Corresponding forward node candidate:
      # In file /lib/grad/matmul.py:1, 1~2/    wrong/
  %4(CNode_5) = PrimFunc_Mul(%3, %0) cnode_primal_attrs: {forward_unique_id: "999"}
      # Fullname with scope: (Expand/_Muls/Mul-op0)
      # In file /code/train.py:19, 1~2/        z = y * 2/
  %5(CNode_6) = MakeTuple(%4)
  Return(%5)
      : (<Tuple[Tensor[Float32]]>)
      # Fullname with scope: (Default/Return-op0)
}
# Order:
#   1: @kernel_graph0:CNode_59{[0]: ValueNode<Primitive> Return, [1]: CNode_58}
"""

OLD = """\
#IR entry      : @0.construct_wrapper
%para1_x : <Tensor[Float32], (32, 256, 13, 13)>

subgraph @0.construct_wrapper() {
  %20(equivoutput) = Conv2D(%17, %19) {instance name: conv2d} primitive_attrs: {IsFeatureMap: true}
      : (<Tensor[Float32], (32, 256, 13, 13)>, <Tensor[Float32], (256, 256, 3, 3)>) -> (<Tensor>)
      : (<Float16xNC1HWC0[const vector][32, 16, 13, 13, 16]>) -> (<Float16xNC1HWC0[const vector]>)
      : full_name_with_scope: (Default/network-AlexNet/conv3-Conv2d/Conv2D-op12)
      # In file /lib/nn/layer/conv.py(263)/        output = self.conv2d(x, self.weight)/
      # In file ./models/alexnet.py(175)/        x = self.conv3(x)/
  %21([CNode]22) = ReLU(%20) {instance name: relu}
      : full_name_with_scope: (Default/network-AlexNet/relu-ReLU/ReLU-op1)
      # In file ./models/alexnet.py(176)/        x = self.relu(x)/
}
"""
