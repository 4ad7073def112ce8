"""Texts that break pages and figures which trust them, and a study that holds all of them wherever text may stand."""

from frames_factory import MadeFrames, frames_of, make_spec

HOSTILE = (
    "<script>window.pwned=1</script>",
    "</script><script>window.pwned=1</script>",
    '"><img src=x onerror=window.pwned=1>',
    "'-window.pwned=1-'",
    "<!--<script>",
    "javascript:window.pwned=1",
    "{{ 7*7 }} {% raw %}",
    "%{x} <b>bold</b> &lt;i&gt;",
    r"study $\frac{1$ \unknown{",
    "$$$",
    "line\u2028separator\u2029and\x00nul\x07bell",
    "\u202eright to left\u202c",
    "emoji \U0001f600 and a lone \ud800".encode("utf-8", "replace").decode(),
    "<a href='https://example.com'>out</a>",
    "<svg onload=window.pwned=1>",
    "=HYPERLINK(1)",
    "x" * 400,
    "&lt;script&gt;window.pwned=1&lt;/script&gt; &amp; &#60;",
    "<iframe srcdoc='<script>parent.pwned=1</script>'>",
    "<style>*{display:none}</style>",
    "<base href='https://example.com/'>",
    "<meta http-equiv=refresh content='0;url=https://example.com'>",
    "%{customdata} %{x:.2f} <extra>",
    "__proto__",
    "constructor",
    "\\u003cscript\\u003e ${window.pwned=1} `window.pwned=1`",
    "tab\tand\r\nline ends\n\n",
    " ",
    "e\u0301 combining \u200b zero width \ufeff",
    "</textarea></title></style></noscript><script>window.pwned=1</script>",
)


def hostile_frames(texts: tuple[str, ...] = HOSTILE) -> MadeFrames:
    """A trial for each text that has it as study, model, category, device and doubt, and a crash with it as error."""
    choice = make_spec(space={"model.weights": {"choice": list(texts)}}).space["model.weights"]
    spec = make_spec(question=" ".join(texts), objectives=["val_accuracy", "train_seconds"])
    spec = spec.model_copy(update={"space": {"data.root": choice, "model.name": choice}})
    rows = [
        {
            "number": n, "config.data.root": text, "config.model.name": text, "device": text, "val_loss": 1.0,
            "environment_digest": text, "quality_flags": text, "reused_from": text, "val_accuracy": 0.5 + n / 100,
            "train_seconds": 1.0 + n, "total_seconds": 2.0 + n, "config.batch.micro": 32, "study": text,
            "peak_memory_bytes": 1e6 * n, "images_per_second": 10.0 * n,
        }
        for n, text in enumerate(texts)
    ]  # fmt: skip
    rows += [
        {"number": 50 + n, "outcome": "crashed", "error": text, "config.data.root": text, "config.model.name": text}
        for n, text in enumerate(texts)
    ]
    frames = frames_of(spec, rows)
    for n, text in enumerate(texts):
        frames.environments.loc[n, "cpu"] = text
    return frames
