// Matrices that are packed while they are read: how often, and for how long they are held.
#include "trainer/model/packed_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hf/safetensors_writer.h"
#include "model/packed_model.h"
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
    write(1.0F);
    spec_.units.push_back({UnitId(0), "block.0", {}, {}, {}});
    spec_.units[0].parameters.push_back({.name = "experts",
                                         .shape = {kExperts, kOut, kIn},
                                         .frozen = true,
                                         .stacked = true,
                                         .init = {}});
    model_ = std::make_unique<ModelDirectory>(ModelDirectory::open(directory_.path()));
    loader_ = std::make_unique<WeightLoader>(*model_, spec_, std::vector<SkipRule>());
    files_ = std::make_unique<ModelFiles>(*model_, &*loader_);
    packed_spec_ = pack_model_spec(spec_, {.format = PackedFormat::kFp8, .compute = DType::kBF16});
    packed_ = std::make_unique<PackedFiles>(packed_spec_, PackedFormat::kFp8, &*files_, &*loader_);
  }

  // Writes the values times `factor`: anew, or over those that are there.
  void write(float factor) const {
    const std::string path = directory_.file("model.safetensors");
    const std::string other = directory_.file("other.safetensors");
    std::vector<float> values;
    for (int64_t expert = 0; expert < kExperts; ++expert) {
      values.insert(values.end(), kMatrix, factor * static_cast<float>(expert + 1));
    }
    SafetensorsWriter writer(other, {{"experts", TensorDType::kF32, {kExperts, kOut, kIn}}}, {});
    writer.append(std::as_bytes(std::span(values)));
    writer.finish();
    std::ifstream in(other, std::ios::binary);
    std::fstream out(path, std::filesystem::exists(path)
                               ? std::ios::binary | std::ios::in | std::ios::out
                               : std::ios::binary | std::ios::out);
    out << in.rdbuf();
    std::filesystem::remove(other);
  }

  int64_t elements() const { return packed_spec_.units[0].parameters[0].shape.back(); }

  // Reads elements of the parameter, each of which is two bytes of packed matrices.
  std::vector<std::byte> read(int64_t begin, int64_t count) const {
    std::vector<std::byte> bytes(static_cast<size_t>(2 * count));
    packed_->read("experts", begin, DType::kBF16, bytes);
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
// the next expert. Each is packed from the files once: other values there change nothing of an
// expert that was begun. One that was read to its end is not held.
TEST_F(PackedFilesTest, AMatrixIsPackedOnceWhileItIsRead) {
  std::vector<std::byte> whole;
  for (int64_t expert = 0; expert < kExperts; ++expert) {
    const std::vector<std::byte> one = read(expert * elements(), elements());
    whole.insert(whole.end(), one.begin(), one.end());
  }
  const int64_t all = kExperts * elements();
  constexpr int64_t kPiece = 3000;
  std::vector<std::byte> pieces(whole.size());
  const auto read_every_second = [&](int64_t first) {
    for (int64_t begin = first; begin < all; begin += 2 * kPiece) {
      const std::vector<std::byte> piece = read(begin, std::min(kPiece, all - begin));
      std::ranges::copy(piece, pieces.begin() + 2 * begin);
    }
  };
  read_every_second(0);
  write(2.0F);
  read_every_second(kPiece);
  EXPECT_TRUE(pieces == whole);
  EXPECT_FALSE(read(0, elements()) == std::vector(whole.begin(), whole.begin() + 2 * elements()))
      << "it was read to its end, and is packed anew";
}

}  // namespace
}  // namespace longshore
