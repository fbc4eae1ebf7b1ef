// Matrices that are packed while they are read: how often, and for how long they are held.
#include "trainer/model/packed_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/errors.h"
#include "hf/safetensors_writer.h"
#include "model/models/packed_model.h"
#include "tests/trainer/temporary_directory.h"

namespace longshore {
namespace {

constexpr int64_t kExperts = 6, kOut = 64, kIn = 128;
constexpr int64_t kMatrix = kOut * kIn;

// A stacked parameter of experts, each of which has its number as all of its values.
class PackedFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(directory_.file("config.json")) << "{}";
    write();
    for (const char* const name : {"embedding", "block.0", "head"}) {
      spec_.units.push_back({UnitId(static_cast<int32_t>(spec_.units.size())), name, {}, {}, {}});
    }
    spec_.units[1].parameters.push_back({.name = "experts",
                                         .shape = {kExperts, kOut, kIn},
                                         .frozen = true,
                                         .stacked = true,
                                         .init = {}});
    model_ = std::make_unique<ModelDirectory>(ModelDirectory::open(directory_.path()));
    loader_ = std::make_unique<WeightLoader>(*model_, spec_, std::vector<SkipRule>());
    files_ = std::make_unique<ModelFiles>(*model_, &*loader_);
    packed_spec_ = pack_model_spec(spec_, {.format = PackedFormat::kFp8, .compute = DType::kBF16});
    packed_ = std::make_unique<PackedFiles>(packed_spec_, DType::kBF16, &*files_, &*loader_);
  }

  std::string weights() const { return directory_.file("model.safetensors"); }
  void write() const {
    std::vector<float> values;
    for (int64_t expert = 0; expert < kExperts; ++expert) {
      values.insert(values.end(), kMatrix, static_cast<float>(expert + 1));
    }
    SafetensorsWriter writer(weights(), {{"experts", TensorDType::kF32, {kExperts, kOut, kIn}}},
                             {});
    writer.append(std::as_bytes(std::span(values)));
    writer.finish();
  }

  // Returns the bytes from one packed matrix to the next.
  Bytes distance() const {
    return stored_matrices(packed_spec_.units[1].parameters[0], DType::kBF16).distance;
  }

  std::vector<std::byte> read(Bytes begin, Bytes count) const {
    std::vector<std::byte> bytes(static_cast<size_t>(count));
    packed_->read("experts", StorageType::kFp8Blocks, begin, bytes);
    return bytes;
  }

  TemporaryDirectory directory_;
  ModelSpec spec_, packed_spec_;
  std::unique_ptr<ModelDirectory> model_;
  std::unique_ptr<WeightLoader> loader_;
  std::unique_ptr<ModelFiles> files_;
  std::unique_ptr<PackedFiles> packed_;
};

// Threads that load a model read pieces of several experts at the same time, and a piece may end in
// the next expert. Each is packed from the files once: an expert that was begun needs the file no
// more. One that was read to its end is not held.
TEST_F(PackedFilesTest, AMatrixIsPackedOnceWhileItIsRead) {
  std::vector<std::byte> whole;
  for (int64_t expert = 0; expert < kExperts; ++expert) {
    const std::vector<std::byte> one = read(expert * distance(), distance());
    whole.insert(whole.end(), one.begin(), one.end());
  }
  const Bytes all = kExperts * distance();
  constexpr Bytes kPiece = 6000;
  std::vector<std::byte> pieces(whole.size());
  const auto read_every_second = [&](Bytes first) {
    for (Bytes begin = first; begin < all; begin += 2 * kPiece) {
      const std::vector<std::byte> piece = read(begin, std::min(kPiece, all - begin));
      std::ranges::copy(piece, pieces.begin() + begin);
    }
  };
  read_every_second(0);
  std::filesystem::resize_file(weights(), 0);
  read_every_second(kPiece);
  EXPECT_TRUE(pieces == whole);
  EXPECT_THROW(read(0, distance()), IoError) << "it is packed anew, from a file that is empty";
}

// A rank of two reads half of each matrix. What is held for the other half is freed when the tier
// says that nothing more is read.
TEST_F(PackedFilesTest, WhatIsHeldOfAMatrixIsReleased) {
  read(0, distance() / 2);
  std::filesystem::resize_file(weights(), 0);
  EXPECT_NO_THROW(read(0, 2)) << "it is held";
  packed_->release("another");
  EXPECT_NO_THROW(read(0, 2)) << "it is still held";
  packed_->release("experts");
  EXPECT_THROW(read(0, 2), IoError) << "it is packed anew, from a file that is empty";
}

}  // namespace
}  // namespace longshore
