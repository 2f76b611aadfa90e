# SPDX-License-Identifier: Apache-2.0
"""PEFT's quick tour: a LoRA adapter, trained by `transformers.Trainer`."""

import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

set_seed(1)
base = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=31,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
)
peft_config = LoraConfig(
    task_type=TaskType.CAUSAL_LM,
    inference_mode=False,
    r=8,
    lora_alpha=32,
    lora_dropout=0.1,
)
model = get_peft_model(base, peft_config)
model.print_trainable_parameters()

tokens = torch.randint(0, 31, (24, 8))
rows = [{"input_ids": row, "labels": row} for row in tokens]
training_args = TrainingArguments(
    output_dir="out",
    learning_rate=1e-3,
    per_device_train_batch_size=2,
    per_device_eval_batch_size=2,
    max_steps=4,
    weight_decay=0.01,
    eval_strategy="steps",
    eval_steps=2,
    save_strategy="no",
    use_cpu=True,
    report_to=[],
)
trainer = Trainer(model=model, args=training_args, train_dataset=rows, eval_dataset=rows[:4])
trainer.train()
if trainer.is_world_process_zero():
    model.save_pretrained("adapter")
print("weights", sum(p.double().abs().sum().item() for p in model.parameters()))
