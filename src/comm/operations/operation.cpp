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
  // FNV-1a gives the same value on every rank, whatever its standard library.
  uint32_t hash = 2166136261u;
  for (const char c : text()) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  }
  return hash;
}

Bytes total_bytes(const Communicator::Segments& segments) {
  Bytes bytes = 0;
  for (const auto& segment : segments) bytes += static_cast<Bytes>(segment.size());
  return bytes;
}

int64_t total_elements(const Communicator::FloatSegments& segments) {
  int64_t elements = 0;
  for (const auto& segment : segments) elements += static_cast<int64_t>(segment.size());
  return elements;
}

void check_parts(const Communicator::Segments& segments, int32_t size) {
  for (const auto& segment : segments) {
    LONGSHORE_CHECK(segment.size() % static_cast<size_t>(size) == 0)
        << segment.size() << " bytes for " << size << " ranks";
  }
}

void check_parts(const Communicator::FloatSegments& segments, int32_t size) {
  for (const auto& segment : segments) {
    LONGSHORE_CHECK(segment.size() % static_cast<size_t>(size) == 0)
        << segment.size() << " elements for " << size << " ranks";
  }
}

void check_reduction(int64_t elements, DType wire, std::span<std::byte> scratch, int32_t size) {
  LONGSHORE_CHECK(wire == DType::kF32 || wire == DType::kBF16) << name_of(wire);
  const Bytes needed = reduce_scratch_bytes(elements, wire, size);
  LONGSHORE_CHECK(static_cast<Bytes>(scratch.size()) >= needed)
      << scratch.size() << " of " << needed << " bytes of scratch";
  LONGSHORE_CHECK(needed == 0 || reinterpret_cast<uintptr_t>(scratch.data()) % sizeof(float) == 0)
      << "scratch is not aligned";
}

void check_gpu_memory(std::span<const std::byte> bytes, CommKind kind, const OpLabel& label,
                      const std::string& group) {
  if (in_gpu_arena(bytes)) return;
  const Operation operation{
      .kind = kind, .label = label, .group = group, .bytes = std::ssize(bytes)};
  LONGSHORE_CHECK(false) << operation.text() << ": these bytes are not in a GPU's arena, and NCCL "
                         << "moves nothing else; memory of the host goes through a group of "
                         << "World::host_group()";
}

void check_nccl_wire(DType wire) {
  if (wire == DType::kF32) return;
  throw ConfigError("precision.reduce: NCCL adds in fp32 only; use \"fp32\"");
}

}  // namespace longshore
