// StoreSecret: what only the processes of one run know. A client of the run's store and its server
// prove to each other that they know it, without sending it: each sends HMAC-SHA256 over both
// nonces, which are new in every connection, so a recorded proof proves nothing. Pure functions but
// for the two that make or read a secret; any thread.
#pragma once

#include <string>
#include <string_view>

#include "comm/store/store_messages.h"

namespace longshore {

// The fewest bytes of a secret in a file.
inline constexpr size_t kMinSecretBytes = 16;

// 64 hexadecimal digits that nobody can foresee.
std::string make_store_secret();
// The content of the file, without white space at its end. ConfigError, which says what to do,
// unless it is a regular file of this user or of root that nobody else can read or write, with
// enough bytes. `key` is what named the file.
std::string read_store_secret(const std::string& path, const std::string& key);

StoreNonce make_store_nonce();

enum class StoreSide : char { kClient = 'C', kServer = 'S' };
// The proof that a side sends.
StoreProof prove_secret(std::string_view secret, StoreSide side, const StoreNonce& server,
                        const StoreNonce& client);
// Takes the same time wherever the two differ.
bool same_proof(const StoreProof& a, const StoreProof& b);

}  // namespace longshore
