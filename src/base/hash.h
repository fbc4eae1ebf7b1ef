// The hash xxh3-64, the checksum of all data that goes to disk and comes back, and its text form. A
// Hasher belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace longshore {

uint64_t hash64(std::span<const std::byte> bytes);
uint64_t hash64(std::string_view text);

// Computes hash64 of bytes that arrive in pieces. The split does not change the result.
class Hasher {
 public:
  Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  ~Hasher();

  Hasher& update(std::span<const std::byte> bytes);
  Hasher& update(std::string_view text);
  // Returns the hash of all bytes so far; more may follow.
  uint64_t digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The text form has 16 lower-case hexadecimal digits; parse_hash returns nullopt for others.
std::string hash_text(uint64_t hash);
std::optional<uint64_t> parse_hash(std::string_view text);

}  // namespace longshore
