"""Faults in the layer programs and the family readers: the wrong weight, the wrong order, the wrong key."""

from __future__ import annotations

from tools.planted_faults.fault import Area, Fault


def _fault(area: Area, name: str, file: str, model: str, old: str, new: str, check: str = "distributions") -> Fault:
    """A fault that the recorded rows of a tiny model show."""
    return Fault(
        name=name,
        area=area,
        file=f"interface/{file}.py",
        old=old,
        new=new,
        run=("seat", "-k", f'"{model} {check}"'),
        caught_by=f"{model}: {check}",
    )


def _program(name: str, layer: str, model: str, old: str, new: str) -> Fault:
    return _fault("layer programs", name, f"layers/{layer}", model, old, new)


def _family(name: str, family: str, model: str, old: str, new: str) -> Fault:
    return _fault("family readers", name, f"families/{family}", model, old, new)


FAULTS = (
    _program(
        "keys are normed with the queries' weights",
        "gqa",
        "qwen3-b-f32.strict",
        'weights["attn_k_norm"]',
        'weights["attn_q_norm"]',
    ),
    _program(
        "keys are not rotated",
        "gqa",
        "qwen3-b-f32.strict",
        "        k = ops.rope(k, batch.positions, kind.rope)\n    ops.append",
        "    ops.append",
    ),
    _program("local layers see everything", "gqa", "gemma3-b-f32.strict", "window=kind.window,", "window=None,"),
    _program(
        "query and gate change places", "gqa", "qwen35-b-f32.strict", "q, gate = ops.split(q,", "gate, q = ops.split(q,"
    ),
    _program(
        "the gate of attention is silently dropped",
        "gqa",
        "qwen35-b-f32.strict",
        "mixed = ops.sigmoid_gate(mixed, gate)",
        "mixed = ops.sigmoid_gate(mixed, mixed)",
    ),
    _program(
        "the norm behind a block takes the weights of the one before",
        "layer",
        "gemma3-b-f32.strict",
        "y = ops.rms_norm(y, weights[behind], eps=eps)",
        "y = ops.rms_norm(y, weights[norm], eps=eps)",
    ),
    _program(
        "experts' shares do not sum to 1",
        "moe",
        "qwen3moe-b-f32.strict",
        "normalised=kind.normalised,",
        "normalised=False,",
    ),
    _program(
        "the scale of the experts' shares is forgotten",
        "moe",
        "nemotronmoe-b-f32.strict",
        "scale=kind.weights_scale,",
        "scale=1.0,",
    ),
    _program(
        "experts are chosen without their bias",
        "moe",
        "nemotronmoe-b-f32.strict",
        'bias=weights.get("exp_probs_b.bias"),',
        "bias=None,",
    ),
    _program(
        "the shared expert is not gated",
        "moe",
        "qwen35moe-b-f32.strict",
        "return y if gate is None else ops.sigmoid_gate(y, ops.linear(x, gate))",
        "return y",
    ),
    _program(
        "the delta rule's keys are not normed",
        "delta_rule",
        "qwen35-b-f32.strict",
        "ops.l2_norm(ops.split_heads(k, kind.n_head_k), eps=kind.norm_eps)",
        "ops.split_heads(k, kind.n_head_k)",
    ),
    _program(
        "the delta rule's gate and value change places",
        "delta_rule",
        "qwen35-b-f32.strict",
        'ops.swiglu(gate, ops.rms_norm(y, weights["ssm_norm"], eps=kind.norm_eps))',
        'ops.swiglu(ops.rms_norm(y, weights["ssm_norm"], eps=kind.norm_eps), gate)',
    ),
    _program(
        "the scan's B and C change places",
        "mamba2",
        "nemotron-b-f32.strict",
        "u, b, c = ops.split(mixed",
        "u, c, b = ops.split(mixed",
    ),
    _program(
        "the scan's output is normed as one group",
        "mamba2",
        "nemotron-b-f32.strict",
        "groups = ops.split_heads(ops.swiglu(gate, ops.merge_heads(y)), kind.n_group)",
        "groups = ops.split_heads(ops.swiglu(ops.merge_heads(y), gate), kind.n_group)",
    ),
    _program(
        "the embedding is not scaled",
        "model",
        "gemma3-b-f32.strict",
        "x = outside.scale(x, spec.embedding_scale)",
        "x = outside.scale(x, 1.0)",
    ),
    _program(
        "the head reads rows before the output norm",
        "model",
        "qwen3-b-f32.strict",
        '    x = outside.rms_norm(x, weights["output_norm"], eps=spec.norm_eps)\n',
        "",
    ),
    _program(
        "a dense layer activates its up rows",
        "activation",
        "qwen3-b-f32.strict",
        'op(project("gate"), project("up"))',
        'op(project("up"), project("gate"))',
    ),
    _family(
        "a head is as wide as its share of the embedding",
        "heads",
        "qwen3-b-f32.strict",
        'read_count(file, f"{prefix}.key_length", n_embd // n_head)',
        "n_embd // n_head",
    ),
    _family(
        "qwen3 turns neighbours",
        "qwen3",
        "qwen3-b-f32.strict",
        'style="neox", n_ctx_train',
        'style="norm", n_ctx_train',
    ),
    _family(
        "YaRN's magnitude is left at 1",
        "rope",
        "qwen3-b-f32.strict",
        "magnitude=magnitude * (1.0 + 0.1 * math.log(max(1.0, factor))),",
        "magnitude=magnitude,",
    ),
    _family(
        "YaRN's factor is not inverted",
        "rope",
        "qwen3-b-f32.strict",
        "freq_scale=1.0 / factor,\n            ext_factor=1.0,",
        "freq_scale=factor,\n            ext_factor=1.0,",
    ),
    _family(
        "gemma3's global layers are the first of six",
        "gemma3",
        "gemma3-b-f32.strict",
        "i % _PERIOD == _PERIOD - 1",
        "i % _PERIOD == 0",
    ),
    _family(
        "gemma3's local layers turn by the global base",
        "gemma3",
        "gemma3-a-f32.strict",
        "_LOCAL_BASE = 10000.0",
        "_LOCAL_BASE = 1000000.0",
    ),
    _family(
        "qwen35's attention is one layer early",
        "qwen35",
        "qwen35-a-f32.strict",
        "(i + 1) % interval != 0 for i",
        "i % interval != 0 for i",
    ),
    _family(
        "qwen35moe's shared expert is read as ungated",
        "qwen35moe",
        "qwen35moe-b-f32.strict",
        "gated=True),",
        "gated=False),",
    ),
    _family(
        "nemotron's experts are chosen by a softmax",
        "nemotron_h",
        "nemotronmoe-b-f32.strict",
        'score="sigmoid",',
        'score="softmax",',
    ),
)
