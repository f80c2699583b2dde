"""Published accuracies of ResNet-50 on ImageNet (SRigL, arXiv 2305.02299, and works it cites)."""

# Method: top-1 in % by sparsity in %; dynamic sparse training first, dense-to-sparse last.
RESNET50: dict[str, dict[float, float]] = {
    "static": {80: 70.6, 90: 65.8},
    "set": {80: 72.9, 90: 69.6},
    "deepr": {80: 71.7, 90: 70.2},
    "dsr": {80: 73.3, 90: 71.6},
    "top-kast": {80: 74.76, 90: 70.42},
    "mest": {80: 75.39, 90: 72.58},
    "rigl": {80: 74.98, 90: 72.81},
    "dsb-16": {50: 76.33, 75: 74.04},
    "chase": {80: 75.27, 90: 74.03},
    "srigl": {50: 76.60, 75: 75.55, 80: 75.01, 90: 72.71, 93.75: 70.56},
    "snfs": {80: 75.2, 90: 73.0},
    "ast": {80: 73.2, 90: 73.1},
    "sr-ste": {75: 76.2, 93.75: 71.5},
}

RESNET50_DENSE = 76.7

# SRigL and structured pruning: operations of inference in 1e9, top-1 accuracy in %, epochs.
STRUCTURED: dict[str, tuple[float, float, int | None]] = {
    "srigl 90 % ×2": (2.0, 74.7, 205),
    "srigl 90 % ×5": (2.0, 76.2, 515),
    "srigl 95 % ×2": (1.0, 71.5, 205),
    "srigl 95 % ×5": (1.0, 73.6, 515),
    "chase 1": (1.5, 76.6, None),
    "chase 2": (0.9, 75.7, None),
}
