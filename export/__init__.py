"""How a checkpoint becomes a bundle: graphs, one weights file, tokenizer and a manifest, written whole or
not at all."""
