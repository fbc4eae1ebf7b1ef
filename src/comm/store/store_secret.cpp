#include "comm/store/store_secret.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "base/errors.h"
#include "base/file.h"
#include "base/texts.h"

namespace longshore {
namespace {

constexpr Bytes kMaxSecretBytes = 4 * kKiB;
static_assert(kStoreProofBytes == crypto_auth_hmacsha256_BYTES);

void fill_with_random_bytes(std::span<char> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::getrandom(bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw IoError("getrandom", "a secret", errno);
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
}

const unsigned char* unsigned_bytes(const char* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

}  // namespace

std::string make_store_secret() {
  StoreNonce random{};
  fill_with_random_bytes(random);
  std::string text(2 * random.size() + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), unsigned_bytes(random.data()), random.size());
  text.pop_back();
  return text;
}

std::string read_store_secret(const std::string& path, const std::string& key) {
  const auto refuse = [&](const std::string& problem, const std::string& remedy) -> ConfigError {
    return ConfigError(key + ": " + printable(path, 400) + " " + problem + "; " + remedy);
  };
  const std::string make = "make one with: (umask 077; head -c 32 /dev/urandom | base64 > FILE)";
  // O_NONBLOCK avoids waiting for a pipe; fstat checks the same file that is read.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), path);
  if (!fd.valid()) {
    throw refuse(std::string("cannot be opened: ") + std::strerror(errno), make);
  }
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) throw IoError("fstat", path, errno);
  if (!S_ISREG(info.st_mode)) throw refuse("is no regular file", make);
  if (info.st_uid != ::geteuid() && info.st_uid != 0) {
    throw refuse("belongs to another user", "its owner must be you or root: copy it");
  }
  if ((info.st_mode & 077) != 0) {
    throw refuse("can be read or written by others", "run: chmod 600 " + printable(path, 400));
  }
  std::string secret = read_to_end(fd, kMaxSecretBytes);
  secret.erase(std::find_if(secret.rbegin(), secret.rend(),
                            [](char c) { return std::strchr(" \t\r\n", c) == nullptr || c == 0; })
                   .base(),
               secret.end());
  if (secret.size() < kMinSecretBytes) {
    throw refuse("has " + std::to_string(secret.size()) + " bytes, a secret at least " +
                     std::to_string(kMinSecretBytes),
                 make);
  }
  return secret;
}

StoreNonce make_store_nonce() {
  StoreNonce nonce{};
  fill_with_random_bytes(nonce);
  return nonce;
}

StoreProof prove_secret(std::string_view secret, StoreSide side, const StoreNonce& server,
                        const StoreNonce& client) {
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, unsigned_bytes(secret.data()), secret.size());
  const char label[] = {'l', 'o', 'n', 'g', 's', 'h', 'o', 'r', 'e', static_cast<char>(side)};
  crypto_auth_hmacsha256_update(&state, unsigned_bytes(label), sizeof label);
  for (const StoreNonce* nonce : {&server, &client}) {
    crypto_auth_hmacsha256_update(&state, unsigned_bytes(nonce->data()), nonce->size());
  }
  StoreProof proof{};
  crypto_auth_hmacsha256_final(&state, reinterpret_cast<unsigned char*>(proof.data()));
  return proof;
}

bool same_proof(const StoreProof& a, const StoreProof& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace longshore
