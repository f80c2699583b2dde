"""Reports: one model of a document and of its figure, a renderer for each way to show them."""
