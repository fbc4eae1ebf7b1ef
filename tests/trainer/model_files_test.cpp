// Frozen values from a model's files: the bits of loading in every dtype, from any element on, and
// files that change, are cut or vanish.
#include "trainer/model/model_files.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "base/errors.h"
#include "base/number_formats.h"
#include "hf/safetensors_writer.h"
#include "shard/shard_store.h"
#include "tests/trainer/temporary_directory.h"

namespace longshore {
namespace {

// More elements than one conversion holds.
constexpr int64_t kElements = (int64_t{1} << 17) + 4096;

// A directory with one tensor of each dtype, named as the dtype, with every 16-bit pattern in it.
class ModelFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(directory_.file("config.json")) << "{}";
    std::vector<uint16_t> halves(kElements);
    std::vector<float> floats(kElements);
    for (size_t i = 0; i < halves.size(); ++i) {
      halves[i] = static_cast<uint16_t>(i * 7919);
      floats[i] = bf16_to_float(halves[i]) * 1.0009765625f;
    }
    std::vector<SafetensorsWriter::Tensor> tensors;
    ModelSpec spec;
    spec.units.push_back({UnitId(0), "all", {}, {}, {}});
    for (const TensorDType dtype : {TensorDType::kF32, TensorDType::kBF16, TensorDType::kF16}) {
      tensors.push_back({std::string(name_of(dtype)), dtype, {kElements}});
      spec.units[0].parameters.push_back(
          {.name = std::string(name_of(dtype)), .shape = {kElements}, .frozen = true, .init = {}});
    }
    SafetensorsWriter writer(weights(), tensors, {});
    writer.append(std::as_bytes(std::span(floats)));
    writer.append(std::as_bytes(std::span(halves)));
    writer.append(std::as_bytes(std::span(halves)));
    writer.finish();
    model_ = std::make_unique<ModelDirectory>(ModelDirectory::open(directory_.path()));
    loader_ = std::make_unique<WeightLoader>(*model_, spec, std::vector<SkipRule>());
  }

  std::string weights() const { return directory_.file("model.safetensors"); }

  // Returns the error of reading some bf16 values.
  std::string error() const {
    std::vector<uint16_t> values(256);
    try {
      ModelFiles(*model_, &*loader_)
          .read("BF16", StorageType::kBF16, 2 * (kElements - 256),
                std::as_writable_bytes(std::span(values)));
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  }

  TemporaryDirectory directory_;
  std::unique_ptr<ModelDirectory> model_;
  std::unique_ptr<WeightLoader> loader_;
};

// Every value has the bits that loading to a tier in host memory gives it.
TEST_F(ModelFilesTest, GivesTheBitsOfLoading) {
  const ModelFiles files(*model_, &*loader_);
  constexpr int64_t kBegin = 3;
  for (const char* const name : {"F32", "BF16", "F16"}) {
    std::vector<float> loaded(kElements - kBegin);
    loader_->read_parameter(name, kBegin, loaded);
    std::vector<uint16_t> high(loaded.size()), read_high(loaded.size());
    StateSpans spans;
    spans.high = high;
    write_values(spans, 0, loaded);
    const Bytes stored = std::string(name) == "F32" ? 4 : 2;
    const auto elements = static_cast<Bytes>(loaded.size());
    EXPECT_EQ(files.read(name, StorageType::kBF16, 2 * kBegin,
                         std::as_writable_bytes(std::span(read_high))),
              elements * stored);
    EXPECT_EQ(read_high, high) << name;
    std::vector<float> read(loaded.size());
    EXPECT_EQ(
        files.read(name, StorageType::kF32, 4 * kBegin, std::as_writable_bytes(std::span(read))),
        elements * stored);
    EXPECT_EQ(std::memcmp(read.data(), loaded.data(), loaded.size() * sizeof(float)), 0) << name;
  }
}

// A file that was written, cut or whose time changed is an error with its name and the tensor.
TEST_F(ModelFilesTest, RefusesAFileThatChanged) {
  EXPECT_EQ(error(), "");
  const std::string place = weights() + ": tensor 'BF16': ";
  const auto time = std::filesystem::last_write_time(weights());
  std::filesystem::last_write_time(weights(), time + std::chrono::seconds(2));
  EXPECT_EQ(error().find(place + "the file changed"), 0u) << error();
  std::filesystem::last_write_time(weights(), time);
  EXPECT_EQ(error(), "") << "it is as it was";
  const auto whole = std::filesystem::file_size(weights());
  std::filesystem::resize_file(weights(), whole + 1);
  std::filesystem::last_write_time(weights(), time);
  EXPECT_EQ(error().find(place + "the file changed"), 0u) << error();
  std::filesystem::resize_file(weights(), whole / 3);
  EXPECT_EQ(error().find(place + "cannot be read: "), 0u) << error();
}

// The run keeps the files open, so a removed or replaced file changes nothing.
TEST_F(ModelFilesTest, ReadsOnWhereAFileIsRemoved) {
  std::filesystem::remove(weights());
  EXPECT_EQ(error(), "");
}

}  // namespace
}  // namespace longshore
