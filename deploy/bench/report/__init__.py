"""Reports: one model of a document and of its figure, and a renderer for each format."""
