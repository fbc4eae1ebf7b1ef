// The identity of the values that a run began with, as the run's directory keeps it.
#include "trainer/checkpoint/start_identity.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "base/errors.h"
#include "tests/trainer/temporary_directory.h"

namespace longshore {
namespace {

const StartIdentity kIdentity{.model = "0123456789abcdef",
                              .frozen = {{"a.weight", "BF16 [2, 3] 00000000000000ff"},
                                         {"b.weight", "F32 [4] 00000000000000fe"}},
                              .values = "fedcba9876543210",
                              .reference = "1111111111111111"};

// The identity that was written is read back; a directory without the file gives an empty identity.
TEST(StartIdentity, ComesBackAsItWasKept) {
  const TemporaryDirectory run;
  EXPECT_EQ(read_start_identity(run.path()), StartIdentity());
  for (const StartIdentity& identity : {kIdentity, StartIdentity()}) {
    write_start_identity(run.path(), identity);
    EXPECT_EQ(read_start_identity(run.path()), identity);
  }
}

// Any changed byte of the file is noticed, and the message names the file and what to do: values
// that are compared with a damaged record would refuse a right model.
TEST(StartIdentity, RefusesADamagedFile) {
  const TemporaryDirectory run;
  const std::string path = run.file("start.json");
  write_start_identity(run.path(), kIdentity);
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  const std::string whole = text.str();
  std::vector<std::string> damaged = {"", "[]", "{}", "{\"identity\": 1}",
                                      whole.substr(0, whole.size() / 2)};
  for (const std::string found : {"00ff", "a.weight", "fedcba"}) {
    std::string other = whole;
    other[other.find(found)] = 'x';
    damaged.push_back(other);
  }
  for (const std::string& one : damaged) {
    std::ofstream(path, std::ios::trunc) << one;
    try {
      read_start_identity(run.path());
      ADD_FAILURE() << one;
    } catch (const CheckpointError& error) {
      const std::string said = error.what();
      EXPECT_NE(said.find(path), std::string::npos) << said;
      EXPECT_NE(said.find("remove the file"), std::string::npos) << said;
    }
  }
}

}  // namespace
}  // namespace longshore
