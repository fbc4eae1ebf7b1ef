#include "base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <charconv>

#include "base/texts.h"

namespace longshore {

struct Hasher::State {
  XXH3_state_t xxh3;
};

uint64_t hash64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

uint64_t hash64(std::string_view text) {
  return XXH3_64bits(text.data(), text.size());
}

Hasher::Hasher() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->xxh3);
}
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;
Hasher::~Hasher() = default;

Hasher& Hasher::update(std::span<const std::byte> bytes) {
  XXH3_64bits_update(&state_->xxh3, bytes.data(), bytes.size());
  return *this;
}

Hasher& Hasher::update(std::string_view text) {
  return update(std::as_bytes(std::span<const char>(text.data(), text.size())));
}

uint64_t Hasher::digest() const {
  return XXH3_64bits_digest(&state_->xxh3);
}

std::string hash_text(uint64_t hash) {
  return formatted("%016llx", static_cast<unsigned long long>(hash));
}

std::optional<uint64_t> parse_hash(std::string_view text) {
  if (text.size() != 16) return std::nullopt;
  for (const char c : text) {
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return std::nullopt;
  }
  uint64_t hash = 0;
  std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  return hash;
}

}  // namespace longshore
