"""Losses, gradients and training runs of the golden cases, as torch and transformers make them."""
import torch

STEPS = 20
SEQUENCES_PER_STEP = 3


def loss_sum(model, row):
    """Sum of cross entropy over the row's trained tokens, and their number."""
    ids = torch.tensor([row["input_ids"]])
    targets = torch.tensor(row.get("labels", row["input_ids"]))[1:]
    logits = model(input_ids=ids).logits[0, :-1].float()
    total = torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
    return total, int((targets != -100).sum())


def backward_balanced(model, rows, trained):
    """The same with the loss that balances experts, which is over one forward call's tokens."""
    longest = max(len(row["input_ids"]) for row in rows)
    ids, mask = torch.zeros((2, len(rows), longest), dtype=torch.long)
    for index, row in enumerate(rows):
        length = len(row["input_ids"])
        ids[index, :length] = torch.tensor(row["input_ids"])
        mask[index, :length] = 1
    output = model(input_ids=ids, attention_mask=mask)
    loss = model.config.router_aux_loss_coef * output.aux_loss.float()
    for row, logits in zip(rows, output.logits):
        targets = torch.tensor(row.get("labels", row["input_ids"]))[1:]
        total = torch.nn.functional.cross_entropy(logits[:len(targets)].float(), targets,
                                                  ignore_index=-100, reduction="sum")
        loss = loss + total / trained
    loss.backward()
    return loss.item()


def backward_mean(model, rows):
    """Gradients of sum / trained tokens over all rows; returns that loss."""
    trained = sum(int((torch.tensor(r.get("labels", r["input_ids"]))[1:] != -100).sum())
                  for r in rows)
    if getattr(model.config, "output_router_logits", False):
        return backward_balanced(model, rows, trained)
    loss = 0.0
    for row in rows:
        total, _ = loss_sum(model, row)
        (total / trained).backward()
        loss += total.item() / trained
    return loss


def train(model, rows, max_grad_norm, adamw):
    matrix = {name: p.dim() >= 2 and not name.endswith("bias")
              for name, p in model.named_parameters()}
    decayed = [p for name, p in model.named_parameters() if matrix[name]]
    others = [p for name, p in model.named_parameters() if not matrix[name]]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": adamw["weight_decay"]},
         {"params": others, "weight_decay": 0.0}],
        lr=adamw["lr"], betas=tuple(adamw["betas"]), eps=adamw["eps"])
    losses, norms = [], []
    for step in range(STEPS):
        first = step * SEQUENCES_PER_STEP
        batch = [rows[(first + i) % len(rows)] for i in range(SEQUENCES_PER_STEP)]
        optimizer.zero_grad()
        losses.append(backward_mean(model, batch))
        limit = max_grad_norm if max_grad_norm > 0 else float("inf")
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), limit).item())
        optimizer.step()
    return losses, norms
