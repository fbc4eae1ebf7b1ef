#include "hf/safetensors_writer.h"

#include <gtest/gtest.h>

#include <array>

#include "base/hash.h"
#include "hf/safetensors_reader.h"
#include "tests/hf/hf_fixtures.h"

namespace longshore {
namespace {

using Tensors = std::vector<SafetensorsWriter::Tensor>;

std::vector<std::byte> counting_bytes(size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 131 % 251);
  return bytes;
}

// Tensors appended in pieces of any size read back with their hashes.
TEST(SafetensorsWriter, WritesWhatTheReaderReads) {
  const Tensors tensors = {{"b", TensorDType::kF32, {300, 1000}},
                           {"empty", TensorDType::kF32, {0, 4}},
                           {"scalar", TensorDType::kI64, {}},
                           {"a \"\n\u00e9", TensorDType::kBF16, {3}},
                           {"last empty", TensorDType::kU8, {0}}};
  const std::array<size_t, 5> sizes = {1'200'000, 0, 8, 6, 0};
  const std::vector<std::byte> all = counting_bytes(1'200'014);
  for (const size_t piece : {size_t{1} << 21, size_t{1'200'003}, size_t{4099}, size_t{10}}) {
    const TemporaryDirectory directory;
    const std::string path = directory / "x.safetensors";
    SafetensorsWriter writer(path, tensors, {{"format", "pt"}, {"step", "7"}});
    for (size_t begin = 0; begin < all.size(); begin += piece) {
      writer.append(std::span(all).subspan(begin, std::min(piece, all.size() - begin)));
    }
    const SafetensorsWriter::Result result = writer.finish();

    const SafetensorsFile file = SafetensorsFile::open(path);
    EXPECT_EQ(file.metadata(), (SafetensorsMetadata{{"format", "pt"}, {"step", "7"}}));
    EXPECT_EQ(file.file_bytes(), result.file_bytes);
    EXPECT_EQ(hash64(read_file(path)), result.file_hash);
    ASSERT_EQ(result.tensor_hashes.size(), tensors.size());
    size_t begin = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const TensorInfo& info = file.tensor(tensors[i].name);
      EXPECT_EQ(info.dtype, tensors[i].dtype);
      EXPECT_EQ(info.shape, tensors[i].shape);
      std::vector<std::byte> out(sizes[i]);
      file.read(info, 0, out);
      EXPECT_TRUE(std::equal(out.begin(), out.end(), all.begin() + static_cast<int64_t>(begin)));
      EXPECT_EQ(result.tensor_hashes[i], hash64(out));
      EXPECT_EQ(file.hash(info), hash64(out));
      begin += sizes[i];
    }
  }
}

// The file has the bytes of the reference implementation, so that an export of an untouched model
// is the same file: safetensors.numpy.save({"b": ones [2, 1] F32, "a": zeros [3] F16}, {"format":
// "pt"}).
TEST(SafetensorsWriter, WritesTheBytesOfTheReferenceImplementation) {
  const TemporaryDirectory directory;
  const std::string path = directory / "x.safetensors";
  SafetensorsWriter writer(path, {{"b", TensorDType::kF32, {2, 1}}, {"a", TensorDType::kF16, {3}}},
                           {{"format", "pt"}});
  const std::array<float, 2> ones = {1.0f, 1.0f};
  writer.append(std::as_bytes(std::span(ones)));
  writer.append(std::vector<std::byte>(6));
  writer.finish();
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"F16","shape":[3],"data_offsets":[8,14]}})";
  std::string expected = std::string("\x90\0\0\0\0\0\0\0", 8) + header;
  expected.resize(8 + 0x90, ' ');
  expected += std::string("\0\0\x80\x3f\0\0\x80\x3f\0\0\0\0\0\0", 14);
  EXPECT_EQ(read_file(path), expected);
}

// A file without tensors is valid.
TEST(SafetensorsWriter, WritesAFileWithoutTensors) {
  const TemporaryDirectory directory;
  SafetensorsWriter(directory / "x.safetensors", {}, {}).finish();
  EXPECT_TRUE(SafetensorsFile::open(directory / "x.safetensors").tensors().empty());
}

// An unfinished file is removed.
TEST(SafetensorsWriter, RemovesAFileThatItDidNotFinish) {
  const TemporaryDirectory directory;
  const std::string path = directory / "x.safetensors";
  {
    SafetensorsWriter writer(path, {{"a", TensorDType::kU8, {4}}}, {});
    writer.append(counting_bytes(2));
    EXPECT_TRUE(std::filesystem::exists(path));
    EXPECT_THROW(writer.finish(), CheckFailure);
    EXPECT_THROW(writer.append(counting_bytes(3)), CheckFailure);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

// An existing file is never overwritten.
TEST(SafetensorsWriter, NeverOverwrites) {
  const TemporaryDirectory directory;
  const std::string path = directory / "x.safetensors";
  write_text(path, "mine");
  const std::string error = error_of<IoError>([&] { SafetensorsWriter(path, {}, {}); });
  expect_parts(error, {path, "exists"});
  EXPECT_EQ(read_file(path), "mine");
}

// A file beyond the disk's space is refused before its first byte of data, and no file remains.
TEST(SafetensorsWriter, RefusesAFileThatTheDiskCannotHold) {
  const TemporaryDirectory directory;
  const std::string path = directory / "x.safetensors";
  const Tensors huge = {{"a", TensorDType::kU8, {int64_t{1} << 55}}};
  const std::string error = error_of<IoError>([&] { SafetensorsWriter(path, huge, {}); });
  expect_parts(error, {"reserve", path});
  EXPECT_FALSE(std::filesystem::exists(path));
}

// Invalid declarations of tensors are refused.
TEST(SafetensorsWriter, ChecksItsDeclarations) {
  const TemporaryDirectory directory;
  const auto declare = [&](const SafetensorsWriter::Tensor& tensor) {
    SafetensorsWriter(directory / "x.safetensors", {tensor}, {});
  };
  EXPECT_THROW(declare({"", TensorDType::kU8, {1}}), CheckFailure);
  EXPECT_THROW(declare({"__metadata__", TensorDType::kU8, {1}}), CheckFailure);
  EXPECT_THROW(declare({"a", TensorDType::kU8, {-1}}), CheckFailure);
  EXPECT_THROW(declare({"a", TensorDType::kF64, {int64_t{1} << 60, 8}}), CheckFailure);
  EXPECT_THROW(declare({"a", TensorDType::kU8, {1, 1, 1, 1, 1, 1, 1, 1, 1}}), CheckFailure);
  EXPECT_FALSE(std::filesystem::exists(directory / "x.safetensors"));
}

}  // namespace
}  // namespace longshore
