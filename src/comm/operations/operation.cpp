#include "comm/operations/operation.h"

#include "base/errors.h"
#include "device/device_memory.h"

namespace longshore {

std::string Operation::text() const {
  std::string text = std::string(name_of(kind)) + " #" + std::to_string(sequence);
  if (!label.what.empty()) text += " of " + label.what;
  if (label.unit) text += ", unit " + std::to_string(label.unit->value);
  if (kind != CommKind::kBarrier) {
    text += " (" + std::to_string(bytes) + " bytes" + (detail.empty() ? "" : ", " + detail) + ")";
  }
  return text + " in group " + group;
}

uint32_t Operation::tag() const {
  // FNV-1a has the same value on every rank, independent of the standard library.
  uint32_t hash = 2166136261u;
  for (const char c : text()) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  }
  return hash;
}

void check_reduction(const Collective& collective, int32_t size) {
  if (!collective.reduces()) return;
  const DType wire = collective.wire;
  const std::span<std::byte> scratch = collective.scratch;
  LONGSHORE_CHECK(wire == DType::kF32 || wire == DType::kBF16) << name_of(wire);
  const Bytes needed = reduce_scratch_bytes(collective.payload() / width_of(wire), wire, size);
  LONGSHORE_CHECK(static_cast<Bytes>(scratch.size()) >= needed)
      << scratch.size() << " of " << needed << " bytes of scratch";
  LONGSHORE_CHECK(needed == 0 || reinterpret_cast<uintptr_t>(scratch.data()) % sizeof(float) == 0)
      << "scratch is not aligned";
}

void check_for_nccl(const Collective& collective, const std::string& group) {
  if (collective.wire != DType::kF32) {
    throw ConfigError("precision.reduce: NCCL adds in fp32 only; use \"fp32\"");
  }
  for (const auto& segment : collective.segments) {
    if (in_gpu_arena(segment)) continue;
    const Operation operation{.kind = collective.kind,
                              .label = collective.label,
                              .group = group,
                              .bytes = std::ssize(segment)};
    LONGSHORE_CHECK(false) << operation.text() << ": these bytes are not in a GPU's arena, and "
                           << "NCCL moves nothing else; memory of the host goes through a group of "
                           << "World::host_group()";
  }
}

}  // namespace longshore
