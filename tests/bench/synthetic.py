"""synthetic.py: model files with synthetic weights. make_model writes each when it is first needed."""
import os
import subprocess

# Usual values of --eps by shape: the scale of what the target's layers after the first add. The draft model has
# only the first layer, so a smaller eps means more accepted tokens.
EPS = {"1b": [0.018, 0.07, 0.2], "0.1b": [0.005, 0.02, 0.1], "tiny": [0.05]}


def model_file(o, kind, name, *options):
    """The path of the model SHAPE-KIND-NAME.gguf in o.models. options: of make_model, if the file does not exist."""
    path = os.path.join(o.models, "-".join(part for part in [o.shape, kind, name] if part) + ".gguf")
    if not os.path.exists(path):
        os.makedirs(o.models, exist_ok=True)
        make = [os.path.join(o.bin, "tests", "make_model"), "--shape", o.shape, *options]
        if subprocess.run([*make, "--out", path + ".part"], check=False).returncode:
            raise SystemExit(f"could not write the model {path}")
        os.rename(path + ".part", path)
    return path


def target_file(o, eps):
    """A Q8_0 model whose layers after the first add little: eps is their scale."""
    return model_file(o, "q8_0", "eps%g" % eps, "--type", "q8_0", "--faint-from", "1", "--eps", str(eps))


def draft_file(o):
    """The first layer of target_file() as a separate model: the draft model of the pair."""
    return model_file(o, "q8_0", "layers1", "--type", "q8_0", "--layers", "1")
