// hash64 (xxh3-64), the checksum of all data that goes to disk and comes back, with its text form,
// and place_sum, a hash that depends on positions: the sums of the parts add up to the sum of the
// whole. A Hasher belongs to one thread.
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

// Returns the sum of `bytes`, which are at offset `begin` of a longer sequence. The sums of any
// parts of a sequence, cut at any byte, add up (modulo 2^64) to the sum of the whole, so ranks that
// read different parts together know the sum of the whole. Multilinear hashing (Lemire and Kaser,
// "Strongly universal string hashing is fast", 2014): each 8-byte word is multiplied by an odd key
// that follows from its place. A change of one word always changes the sum; changes of several
// words do so except with a probability of about 2^-60. It does not protect against values that are
// chosen to collide.
uint64_t place_sum(int64_t begin, std::span<const std::byte> bytes);

// The text form has 16 lower-case hexadecimal digits; parse_hash returns nullopt for others.
std::string hash_text(uint64_t hash);
std::optional<uint64_t> parse_hash(std::string_view text);

}  // namespace longshore
