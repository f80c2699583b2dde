"""What runs by path in processes of their own, under any Python: nothing here imports fanin."""
