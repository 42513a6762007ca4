"""Small models of transformers that read images, and whether packed documents and their images are isolated."""
