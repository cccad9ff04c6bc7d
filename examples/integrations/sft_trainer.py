"""TRL's SFTTrainer in which every layer has to lower the loss: python sft_trainer.py."""

import datasets
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig

from cudt.integrations.trl import Descent, DescentSFTTrainer

torch.manual_seed(0)
letters = {letter: index for index, letter in enumerate(["<pad>", "</s>", *" :abcdefghijklmnopqrstuvwxyz"])}
tokenizer = Tokenizer(models.WordLevel(letters, unk_token=" "))
tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
size = {"vocab_size": len(letters), "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
words = ["red", "blue", "green", "white", "black", "brown"]
dataset = datasets.Dataset.from_list([{"prompt": f"say {word}:", "completion": f" {word}"} for word in words * 32])

trainer = DescentSFTTrainer(
    LlamaForCausalLM(LlamaConfig(**size, num_hidden_layers=4, initializer_range=0.1)),
    SFTConfig(
        "checkpoints",
        num_train_epochs=5,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        logging_steps=20,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
    ),
    train_dataset=dataset,
    eval_dataset=dataset.select(range(6)),
    processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>"),
    descent=Descent(alpha=0.05, resilience="decay", beta=10.0),
)
trainer.train()
print(f"multipliers {trainer.problem.descent.multiplier_values}")
