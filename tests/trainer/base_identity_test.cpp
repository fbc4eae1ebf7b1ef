// longshore_base.json: the identity of the model below an adapter, as the file beside it says.
#include "trainer/model/base_identity.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/errors.h"
#include "base/json.h"
#include "tests/trainer/temporary_directory.h"

namespace longshore {
namespace {

const BaseIdentity kIdentity{.base = "owner/model",
                             .vocabulary = 32000,
                             .tensors = {{"a.weight", "BF16 [2, 3] 00000000000000ff"},
                                         {"b.weight", "F32 [4] 00000000000000fe"}}};

void put_text(const TemporaryDirectory& adapter, const std::string& text) {
  std::ofstream(adapter.file(kBaseIdentityName), std::ios::trunc) << text;
}

// Goal: the identity that an export wrote is read back, also with a path that is not UTF-8 as the
// name of the model. A directory without the file has none.
TEST(BaseIdentity, ComesBackAsItWasWritten) {
  const TemporaryDirectory adapter;
  EXPECT_EQ(read_base_identity(adapter.path()), std::nullopt);
  put_text(adapter, base_identity_text(kIdentity));
  EXPECT_EQ(read_base_identity(adapter.path()), kIdentity);
  BaseIdentity odd = kIdentity;
  odd.base = "/models/\xff";
  put_text(adapter, base_identity_text(odd));
  EXPECT_EQ(read_base_identity(adapter.path())->tensors, kIdentity.tensors);
}

// Goal: people can compare two models by one number, which follows from the values alone and not
// from the name of the model.
TEST(BaseIdentity, HasOneHashOfTheValues) {
  const auto hash_of = [](const BaseIdentity& identity) {
    return Json::parse(base_identity_text(identity)).at("identity").at("values");
  };
  BaseIdentity renamed = kIdentity, changed = kIdentity;
  renamed.base = "copy";
  changed.tensors["a.weight"] = "BF16 [2, 3] 00000000000000fd";
  EXPECT_EQ(hash_of(renamed), hash_of(kIdentity));
  EXPECT_NE(hash_of(changed), hash_of(kIdentity));
}

// Goal: any changed byte is noticed, and the message names the file and what to do. A comparison
// with a damaged record would refuse the right model, or take a wrong one.
TEST(BaseIdentity, RefusesADamagedFile) {
  const TemporaryDirectory adapter;
  const std::string whole = base_identity_text(kIdentity);
  std::vector<std::string> damaged = {"", "[]", "{}", "{\"identity\": 1}",
                                      whole.substr(0, whole.size() / 2)};
  for (const std::string found : {"00ff", "a.weight", "owner", "32000"}) {
    std::string other = whole;
    other[other.find(found)] = '1';
    damaged.push_back(other);
  }
  for (const std::string& one : damaged) {
    put_text(adapter, one);
    try {
      read_base_identity(adapter.path());
      ADD_FAILURE() << one;
    } catch (const DataError& error) {
      const std::string said = error.what();
      EXPECT_NE(said.find(adapter.file(kBaseIdentityName)), std::string::npos) << said;
      EXPECT_NE(said.find("remove the file"), std::string::npos) << said;
    }
  }
}

// Goal: a directory in the file's place is refused as a damaged file, and not read.
TEST(BaseIdentity, RefusesADirectoryOfThatName) {
  const TemporaryDirectory adapter;
  std::filesystem::create_directory(adapter.file(kBaseIdentityName));
  EXPECT_THROW(read_base_identity(adapter.path()), DataError);
}

}  // namespace
}  // namespace longshore
