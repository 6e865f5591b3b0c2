#!/usr/bin/env python3
"""Writes sentencepiece.json: a vocabulary that SentencePiece trained, as GGUF files have it, and the tokens of texts.

    pip install sentencepiece && python make_sentencepiece.py

SentencePiece's BPE joins the neighbours that make the piece of the best score, as llama.cpp does for vocabularies of the kind `llama`.
"""
import io, json, os
import sentencepiece as spm

CORPUS = """The quick brown fox jumps over the lazy dog. A compiler turns a graph of tensors into a plan of kernels.
Every kernel is written once: the same body runs on processors of all kinds. In the beginning there was the word.
Numbers such as 1, 22, 333 and 4096 are read digit by digit. She sells sea shells by the sea shore; the shells she sells are shells.
Ein naiver Leser liest naive Texte über Größe und Maß. Le café est fermé, et la fenêtre est ouverte.
Attention is computed over pages of keys and values, and tokens are drawn from the softmax of logits."""
TEXTS = ["", "the", "The quick brown fox", "shells and shells", "  two  spaces ", "line\nbreak\ttab", "naïve café", "你好, world", "12345 tokens",
         "unseen words: zyxwvut QQQ", "a\u00a0b", "😀", "kernel kernels kernelize", "x" * 40]

model = io.BytesIO()
spm.SentencePieceTrainer.train(
    sentence_iterator=iter(CORPUS.splitlines() * 4), model_writer=model, vocab_size=480, model_type="bpe", byte_fallback=True,
    split_digits=True, normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=1.0, minloglevel=2)
p = spm.SentencePieceProcessor(model_proto=model.getvalue())
n = p.get_piece_size()
kind = lambda i: 2 if p.is_unknown(i) else 3 if p.is_control(i) else 6 if p.is_byte(i) else 5 if p.is_unused(i) else 1
out = {
    "tokens": [p.id_to_piece(i) for i in range(n)], "scores": [p.get_score(i) for i in range(n)], "token_type": [kind(i) for i in range(n)],
    "texts": [{"text": t, "ids": p.encode(t), "decoded": p.decode(p.encode(t))} for t in TEXTS],
}
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "sentencepiece.json"), "w") as f:
    json.dump(out, f, ensure_ascii=False, separators=(",", ":"))
    f.write("\n")
