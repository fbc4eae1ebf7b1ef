#include "comm/operations/operation.h"

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

}  // namespace longshore
