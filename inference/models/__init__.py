"""Models by name: what `--model` may say, the folder of models that were pulled, and pulls from a hub.

Hugging Face's hub, or a mirror of it that HF_ENDPOINT names, is reached through huggingface_hub, which is loaded only
where something is pulled. A model stands in the folder whole and checked, or not at all.

Never loads a model, and knows no engine beyond the kind of file that it reads. Start reading with `reference.py`.
"""
