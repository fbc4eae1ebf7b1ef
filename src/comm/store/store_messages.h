// The wire format between a store's server and its clients. Only this code parses
// bytes from a socket. Pure functions, any thread.
//
//   server -> client  challenge: magic, nonce of the server
//   client -> server  hello: magic, nonce of the client, proof over both nonces
//   server -> client  welcome: magic, the server's own proof; or refusal: magic alone
//   then, any number of times
//   client -> server  request: bytes of the body (u32), body
//   server -> client  reply: bytes of the body (u32), body
//
//   request's body    command (u8), keys (u16), each with its length (u16); expected and value,
//                     each with its length (u32)
//   reply's body      status (u8), values (u16), each with its length (u32)
//
// Numbers are little-endian. A body ends exactly where its lengths say.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace longshore {

inline constexpr size_t kStoreMagicBytes = 8;
inline constexpr std::string_view kStoreChallengeMagic = "LSstore1";
inline constexpr std::string_view kStoreHelloMagic = "LShello1";
inline constexpr std::string_view kStoreWelcomeMagic = "LSenter1";
inline constexpr std::string_view kStoreRefusalMagic = "LSrefuse";

inline constexpr size_t kStoreNonceBytes = 32;
inline constexpr size_t kStoreProofBytes = 32;
using StoreNonce = std::array<char, kStoreNonceBytes>;
using StoreProof = std::array<char, kStoreProofBytes>;
inline constexpr size_t kStoreHelloBytes = kStoreMagicBytes + kStoreNonceBytes + kStoreProofBytes;

// The parsers' limits: the longest key, the longest value, the most keys in a request, and the
// longest body of a message.
inline constexpr size_t kMaxStoreKey = 1024;
inline constexpr Bytes kMaxStoreValue = 16 * kMiB;
inline constexpr size_t kMaxStoreKeys = 1024;
inline constexpr Bytes kMaxStoreBody = kMaxStoreValue + 2 * kMiB;

enum class StoreCommand : uint8_t {
  kSet = 1,     // one key, value
  kGet,         // keys that exist; the reply may hold only the first values
  kHas,         // keys; "1" if all exist, otherwise "0"
  kCompareSet,  // one key: compare-and-set, as StoreConnection::compare_set
  kAdd,         // one key, a decimal number; absent counts as 0
  kAppend,      // one key, value
  kDelete,      // one key; "1" if it existed
  kCount,       // no key
};
inline constexpr uint8_t kLastStoreCommand = 8;

struct StoreRequest {
  StoreCommand command = StoreCommand::kCount;
  std::vector<std::string> keys;
  std::string expected;
  std::string value;
  bool operator==(const StoreRequest&) const = default;
};

struct StoreReply {
  bool done = true;                 // if false, the first value is the reason
  std::vector<std::string> values;  // the command's results
  bool operator==(const StoreReply&) const = default;
};

struct StoreHello {
  StoreNonce nonce{};
  StoreProof proof{};
};

enum class Parsed : uint8_t {
  kIncomplete,  // a prefix of a message
  kBad,         // cannot become a message
  kDone,        // `used` bytes are a message
};

// Parses the message at the beginning of `bytes`. Checks lengths before it copies anything.
Parsed parse_hello(std::string_view bytes, StoreHello& hello);
Parsed parse_request(std::string_view bytes, StoreRequest& request, size_t& used);
Parsed parse_reply(std::string_view bytes, StoreReply& reply, size_t& used);

std::string to_bytes(const StoreHello& hello);
std::string to_bytes(const StoreRequest& request);
std::string to_bytes(const StoreReply& reply);

// Parses a decimal integer that must be the whole text.
bool parse_store_number(std::string_view text, int64_t& number);

}  // namespace longshore
