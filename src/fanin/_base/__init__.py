"""What several packages need and none of them owns; the standard library is all that it imports."""
