"""fanin.ort_ops"""
