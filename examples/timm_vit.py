"""Sparse training of a timm model with two lines, on random images.

pip install 'fanin[timm]'; python examples/timm_vit.py
"""

import timm
import torch

from fanin.trainer import InitializationOptions, Sparsifier, SRigL

STEPS = 30

model = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=10, depth=4)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
sparsifier = Sparsifier(
    model,
    optimizer,
    method=SRigL(sparsity=0.9),
    total_steps=STEPS,
    update_every=5,
    dense_layers=["patch_embed.proj", "head"],
    initialization=InitializationOptions(keep_weights=False),  # from scratch
)
for _ in range(STEPS):
    images, labels = torch.randn(8, 3, 64, 64), torch.randint(10, (8,))
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
    sparsifier.step()
    optimizer.zero_grad()
print(sparsifier.summary())
