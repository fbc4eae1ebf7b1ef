// The secret shared by the processes of one run. The store's server and each client
// prove that they know it without sending it: each sends an HMAC-SHA256 over both nonces, which are
// new for every connection, so that a recorded proof is useless. Any thread; only the functions
// that make or read a secret or nonce are not pure.
#pragma once

#include <string>
#include <string_view>

#include "comm/store/store_messages.h"

namespace longshore {

// The minimum length of a secret in a file.
inline constexpr size_t kMinSecretBytes = 16;

// Returns 64 unpredictable hexadecimal digits.
std::string make_store_secret();
// Returns the file's content without trailing white space. Throws ConfigError with a remedy unless
// it is a regular file of this user or root that is inaccessible to other users and long enough.
// `key` is the configuration key or option that named the file, for errors.
std::string read_store_secret(const std::string& path, const std::string& key);

StoreNonce make_store_nonce();

enum class StoreSide : char { kClient = 'C', kServer = 'S' };
// Returns the proof that a side sends.
StoreProof prove_secret(std::string_view secret, StoreSide side, const StoreNonce& server,
                        const StoreNonce& client);
// Compares in constant time.
bool same_proof(const StoreProof& a, const StoreProof& b);

}  // namespace longshore
