// The messages and the table of the key-value store, without sockets.
#include "comm/store/store_messages.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/errors.h"
#include "base/file.h"
#include "comm/store/store_secret.h"
#include "comm/store/store_table.h"

namespace longshore {
namespace {

std::vector<StoreRequest> some_requests() {
  return {{StoreCommand::kSet, {"a"}, "", "1"},
          {StoreCommand::kSet, {std::string(kMaxStoreKey, 'k')}, "", std::string("\0\n\xff", 3)},
          {StoreCommand::kGet, {"a", "b"}, "", ""},
          {StoreCommand::kHas, std::vector<std::string>(kMaxStoreKeys, "x"), "", ""},
          {StoreCommand::kCompareSet, {"a"}, "1", "2"},
          {StoreCommand::kAdd, {"n"}, "", "-9223372036854775808"},
          {StoreCommand::kAppend, {"a"}, "", std::string(5000, 'v')},
          {StoreCommand::kDelete, {"a"}, "", ""},
          {StoreCommand::kCount, {}, "", ""}};
}

// Goal: a written message is read back, and every shorter prefix of it waits for more bytes.
TEST(StoreMessages, RequestsAreReadAsTheyWereWritten) {
  for (const StoreRequest& request : some_requests()) {
    const std::string bytes = to_bytes(request);
    StoreRequest read;
    size_t used = 0;
    ASSERT_EQ(parse_request(bytes + "more", read, used), Parsed::kDone);
    EXPECT_EQ(used, bytes.size());
    EXPECT_EQ(read, request);
    for (size_t i = 0; i < bytes.size(); i += 1 + i / 50) {
      EXPECT_EQ(parse_request(bytes.substr(0, i), read, used), Parsed::kIncomplete) << i;
    }
  }
}

// Goal: a length beyond the limit is refused before the announced bytes arrive.
TEST(StoreMessages, RefusesLengthsBeyondTheLimits) {
  StoreRequest request;
  StoreReply reply;
  size_t used = 0;
  for (const std::string& bytes :
       {std::string("\xff\xff\xff\xff", 4), std::string("\0\0\0\x10", 4), std::string(4, '\0'),
        std::string("GET / HTTP/1.1\r\n"), std::string("\x16\x03\x01\x02\0\x01", 6)}) {
    EXPECT_EQ(parse_request(bytes, request, used), Parsed::kBad);
    EXPECT_EQ(parse_reply(bytes, reply, used), Parsed::kBad);
  }
  StoreRequest many{StoreCommand::kHas, std::vector<std::string>(kMaxStoreKeys + 1, "x"), "", ""};
  EXPECT_EQ(parse_request(to_bytes(many), request, used), Parsed::kBad);
  StoreRequest nameless{StoreCommand::kSet, {""}, "", "1"};
  EXPECT_EQ(parse_request(to_bytes(nameless), request, used), Parsed::kBad);
}

StoreReply ask(StoreTable& table, StoreCommand command, const std::string& key,
               const std::string& value = "", const std::string& expected = "") {
  return table.answer({command, {key}, expected, value});
}

// Goal: the table stays within its limits, and a refused request changes nothing.
TEST(StoreTable, StaysWithinItsLimits) {
  StoreTable table(3, 1000);
  for (const char* key : {"a", "b", "c"})
    EXPECT_TRUE(ask(table, StoreCommand::kSet, key, "1").done);
  EXPECT_FALSE(ask(table, StoreCommand::kSet, "d", "1").done);
  EXPECT_FALSE(ask(table, StoreCommand::kAdd, "d", "1").done);
  const Bytes before = table.bytes();
  EXPECT_FALSE(ask(table, StoreCommand::kSet, "a", std::string(1000, 'x')).done);
  EXPECT_FALSE(ask(table, StoreCommand::kAppend, "a", std::string(1000, 'x')).done);
  EXPECT_EQ(table.bytes(), before);
  EXPECT_EQ(ask(table, StoreCommand::kGet, "a").values.front(), "1");
  EXPECT_EQ(ask(table, StoreCommand::kDelete, "a").values.front(), "1");
  EXPECT_TRUE(ask(table, StoreCommand::kSet, "d", std::string(500, 'x')).done);
  for (const char* key : {"b", "c", "d"}) ask(table, StoreCommand::kDelete, key);
  EXPECT_EQ(table.bytes(), 0);
}

// Goal: compare-and-set, add and append behave as in LibTorch's stores.
TEST(StoreTable, ComparesAddsAndAppends) {
  StoreTable table(10, 10'000);
  const auto set_if = [&](const std::string& expected, const std::string& value) {
    return ask(table, StoreCommand::kCompareSet, "k", value, expected).values.front();
  };
  EXPECT_EQ(set_if("x", "1"), "x");
  EXPECT_EQ(set_if("", "1"), "1");
  EXPECT_EQ(set_if("", "2"), "1");
  EXPECT_EQ(set_if("1", "2"), "2");
  EXPECT_EQ(ask(table, StoreCommand::kAdd, "n", "5").values.front(), "5");
  EXPECT_EQ(ask(table, StoreCommand::kAdd, "n", "-7").values.front(), "-2");
  EXPECT_FALSE(ask(table, StoreCommand::kAdd, "n", "-9223372036854775808").done);
  EXPECT_FALSE(ask(table, StoreCommand::kAdd, "k", "x").done);
  ask(table, StoreCommand::kAppend, "t", "a");
  ask(table, StoreCommand::kAppend, "t", "b");
  EXPECT_EQ(ask(table, StoreCommand::kGet, "t").values.front(), "ab");
  EXPECT_FALSE(ask(table, StoreCommand::kGet, "absent").done);
}

// Goal: a proof is valid for one secret, one side and one pair of nonces; one is compared with the
// first bytes that Python's hmac computes.
TEST(StoreSecret, AProofIsForOneConnection) {
  StoreNonce a{}, b{};
  std::fill(a.begin(), a.end(), 'a');
  std::fill(b.begin(), b.end(), 'b');
  const StoreProof proof = prove_secret("a secret of the run", StoreSide::kClient, a, b);
  EXPECT_EQ(std::string(proof.begin(), proof.begin() + 4),
            "\x9d"
            "\x22"
            "\x55"
            "\xd5");
  EXPECT_TRUE(same_proof(proof, prove_secret("a secret of the run", StoreSide::kClient, a, b)));
  EXPECT_FALSE(same_proof(proof, prove_secret("a secret of the ruN", StoreSide::kClient, a, b)));
  EXPECT_FALSE(same_proof(proof, prove_secret("a secret of the run", StoreSide::kServer, a, b)));
  EXPECT_FALSE(same_proof(proof, prove_secret("a secret of the run", StoreSide::kClient, b, a)));
  EXPECT_NE(make_store_secret(), make_store_secret());
  EXPECT_EQ(make_store_secret().size(), 64u);
}

// Goal: a secret file that others can access, that is short or not regular is refused.
TEST(StoreSecret, AFileIsForItsOwnerAlone) {
  const std::string path = testing::TempDir() + "longshore-secret-" + std::to_string(::getpid());
  std::filesystem::remove_all(path);
  const auto problem = [&] {
    try {
      read_store_secret(path, "dist.secret_file");
      return std::string();
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_NE(problem().find("dist.secret_file: " + path + " cannot be opened"), std::string::npos);
  EXPECT_NE(problem().find("umask 077"), std::string::npos);
  std::ofstream(path) << "0123456789abcdef\n";
  for (const mode_t mode : {0640, 0604, 0620, 0602, 0610}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    EXPECT_NE(problem().find("run: chmod 600 " + path), std::string::npos) << problem();
  }
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  EXPECT_EQ(problem(), "");
  EXPECT_EQ(read_store_secret(path, "dist.secret_file"), "0123456789abcdef");
  std::ofstream(path) << "short \n\n";
  EXPECT_NE(problem().find("has 5 bytes"), std::string::npos) << problem();
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_NE(problem().find("is no regular file"), std::string::npos) << problem();
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace longshore
