// StoreMessages: the bytes that a store's server and its clients exchange. Pure functions, any
// thread; what comes from a socket is read here and nowhere else.
//
//   server -> client  challenge: magic, nonce of the server
//   client -> server  hello: magic, nonce of the client, proof over both nonces
//   server -> client  welcome: magic, the server's own proof; or refusal: magic alone
//   then, as often as the client likes
//   client -> server  request: bytes of the body (u32), body
//   server -> client  reply: the same
//
//   request's body    command (u8), keys (u16), each with its length (u16); expected and value,
//   each
//                     with its length (u32)
//   reply's body      status (u8), values (u16), each with its length (u32)
//
// Numbers are little-endian. A body has exactly the bytes that its lengths say.
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

// The longest key, the longest value, the most keys of a request, and the longest body of a message
// that the parsers accept.
inline constexpr size_t kMaxStoreKey = 1024;
inline constexpr Bytes kMaxStoreValue = 16 * kMiB;
inline constexpr size_t kMaxStoreKeys = 1024;
inline constexpr Bytes kMaxStoreBody = kMaxStoreValue + 2 * kMiB;

enum class StoreCommand : uint8_t {
  kSet = 1,     // one key, value
  kGet,         // keys that exist; the reply may have the values of the first ones only
  kHas,         // keys; "1" where all exist, else "0"
  kCompareSet,  // one key: sets it where it is absent and `expected` is empty, or equals `expected`
  kAdd,         // one key, a decimal number; absent counts as 0
  kAppend,      // one key, value
  kDelete,      // one key; "1" where it existed
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
  bool done = true;                 // else the first value says why not
  std::vector<std::string> values;  // of the command
  bool operator==(const StoreReply&) const = default;
};

struct StoreHello {
  StoreNonce nonce{};
  StoreProof proof{};
};

enum class Parsed : uint8_t {
  kIncomplete,  // more bytes may make a message of it
  kBad,         // no bytes that follow can
  kDone,        // `used` bytes were a message
};

// The message at the beginning of `bytes`. Looks at lengths before it copies anything.
Parsed parse_hello(std::string_view bytes, StoreHello& hello);
Parsed parse_request(std::string_view bytes, StoreRequest& request, size_t& used);
Parsed parse_reply(std::string_view bytes, StoreReply& reply, size_t& used);

std::string to_bytes(const StoreHello& hello);
std::string to_bytes(const StoreRequest& request);
std::string to_bytes(const StoreReply& reply);

// The whole number that a text is, with nothing around it.
bool parse_store_number(std::string_view text, int64_t& number);

}  // namespace longshore
