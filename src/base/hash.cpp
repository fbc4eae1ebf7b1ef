#include "base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

#include "base/texts.h"

namespace longshore {

namespace {

constexpr int64_t kWordBytes = 8;
static_assert(std::endian::native == std::endian::little, "words are read as they lie in memory");

// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014), made odd.
uint64_t key_of_word(uint64_t word) {
  uint64_t key = (word + 1) * 0x9E3779B97F4A7C15;
  key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9;
  key = (key ^ (key >> 27)) * 0x94D049BB133111EB;
  return (key ^ (key >> 31)) | 1;
}

// Returns the sum of bytes within one word that begin `inside` bytes after its first byte.
uint64_t sum_in_word(uint64_t word, int64_t inside, std::span<const std::byte> bytes) {
  uint64_t value = 0;
  std::memcpy(reinterpret_cast<std::byte*>(&value) + inside, bytes.data(), bytes.size());
  return key_of_word(word) * value;
}

}  // namespace

struct Hasher::State {
  XXH3_state_t xxh3;
};

uint64_t hash64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

uint64_t hash64(std::string_view text) {
  return XXH3_64bits(text.data(), text.size());
}

uint64_t place_sum(int64_t begin, std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  auto word = static_cast<uint64_t>(begin / kWordBytes);
  if (const int64_t inside = begin % kWordBytes; inside != 0) {
    const size_t count = std::min(bytes.size(), static_cast<size_t>(kWordBytes - inside));
    sum += sum_in_word(word++, inside, bytes.first(count));
    bytes = bytes.subspan(count);
  }
  for (; bytes.size() >= kWordBytes; bytes = bytes.subspan(kWordBytes)) {
    uint64_t value = 0;
    std::memcpy(&value, bytes.data(), kWordBytes);
    sum += key_of_word(word++) * value;
  }
  return bytes.empty() ? sum : sum + sum_in_word(word, 0, bytes);
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
