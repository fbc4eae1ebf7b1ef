"""gpt_oss with the CPU's flash attention: what "sdpa" is for other families, and transformers does
not offer for one with sinks. Of attention without sinks, its logarithms of sums and the sinks one
makes attention with them; the kernel's own backward over both is the one with the sink in it."""
from contextlib import contextmanager

import torch
from transformers.models.gpt_oss import modeling_gpt_oss

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class _WithSinks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, sinks, mask, scale):
        out, sums = _forward(q, k, v, 0.0, False, attn_mask=mask, scale=scale)
        joined = torch.logaddexp(sums, sinks.float().reshape(1, -1, 1))
        out = (out * (sums - joined).exp().unsqueeze(-1)).to(q.dtype)
        ctx.save_for_backward(q, k, v, out, joined, sinks, mask)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, joined, sinks, mask = ctx.saved_tensors
        of_q, of_k, of_v = _backward(grad.contiguous(), q, k, v, out, joined, 0.0, False,
                                     attn_mask=mask, scale=ctx.scale)
        share = (sinks.float().reshape(1, -1, 1) - joined).exp()
        of_sinks = -(share * (grad.float() * out.float()).sum(-1)).sum((0, 2))
        return of_q, of_k, of_v, of_sinks.to(sinks.dtype), None, None


def _attention(module, q, k, v, mask, scaling, dropout=0.0, **_):
    k = modeling_gpt_oss.repeat_kv(k, module.num_key_value_groups)
    v = modeling_gpt_oss.repeat_kv(v, module.num_key_value_groups)
    return _WithSinks.apply(q, k, v, module.sinks, mask, scaling).transpose(1, 2).contiguous(), None


@contextmanager
def flash():
    """Within it gpt_oss's "eager" attention is that of the kernel."""
    eager = modeling_gpt_oss.eager_attention_forward
    modeling_gpt_oss.eager_attention_forward = _attention
    try:
        yield
    finally:
        modeling_gpt_oss.eager_attention_forward = eager
