"""The embedded demo model: its corpus, vocabulary, chat template, training, export and evaluation."""
