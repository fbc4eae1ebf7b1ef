#include "hf/safetensors_reader.h"

#include <gtest/gtest.h>

#include "tests/hf/hf_fixtures.h"

namespace longshore {
namespace {

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  int64_t begin, int64_t end) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":[)" + shape +
         R"(],"data_offsets":[)" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

struct HostileFile {
  std::string what;
  std::string bytes;
  std::vector<std::string> error_parts;  // parts of the error text besides the path
};

void PrintTo(const HostileFile& file, std::ostream* out) {
  *out << file.what;
}

class Hostile : public testing::TestWithParam<HostileFile> {};

// Every damaged file gives a DataError with the file, the tensor and the reason.
TEST_P(Hostile, FileIsRefusedWithPathTensorAndReason) {
  const TemporaryDirectory directory;
  const std::string path = directory / "bad.safetensors";
  write_text(path, GetParam().bytes);
  const std::string error = error_of<DataError>([&] { SafetensorsFile::open(path); });
  expect_parts(error, {path});
  expect_parts(error, GetParam().error_parts);
}

HostileFile with_header(const std::string& what, const std::string& json, size_t data_bytes,
                        const std::vector<std::string>& error_parts) {
  return {what, safetensors_bytes(json, data_bytes), error_parts};
}

std::vector<HostileFile> broken_frames() {
  std::string long_header = safetensors_bytes("{}", 0);
  long_header[0] = 3;
  std::string endless = safetensors_bytes("{}", 0);
  for (int i = 0; i < 8; ++i) endless[static_cast<size_t>(i)] = '\xFF';
  return {
      {"EmptyFile", "", {"0 bytes are too few"}},
      {"SevenBytes", "1234567", {"7 bytes are too few"}},
      {"HeaderBeyondTheFile", long_header, {"header's length is 3", "at most 2"}},
      {"HeaderLengthAllOnes", endless, {"header's length is 18446744073709551615"}},
      {"LfsPointer", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n", {"Git LFS"}},
      {"NoHeader", safetensors_bytes("", 0), {"the header ends in the middle"}},
      {"Pickle", "\x80\x02}q" + std::string(12, '\x01'), {"header's length"}},
  };
}

std::vector<HostileFile> broken_json() {
  const std::string a = entry("a", "F32", "1", 0, 4);
  std::string nested = R"({"a":)";
  for (int i = 0; i < 10'000; ++i) nested += "[";
  return {
      with_header("ArrayAtTheTop", "[]", 0, {"header byte 0", "expected '{'"}),
      with_header("BytesAfterTheObject", "{} x", 0, {"bytes after the header's object"}),
      with_header("TrailingComma", "{" + a + ",}", 4, {"expected '\"'"}),
      with_header("CutInTheMiddle", "{" + a, 4, {"the header ends in the middle"}),
      with_header("NulPadding", "{" + a + "}" + std::string(3, '\0'), 4, {"bytes after"}),
      with_header("NestedArrays", nested, 0, {"tensor 'a'", "expected '{'"}),
      with_header("InvalidUtf8", "{\"a\xFF\":1}", 0, {"invalid UTF-8"}),
      with_header("OverlongUtf8", "{\"a\xC0\x80\":1}", 0, {"invalid UTF-8"}),
      with_header("SurrogateInUtf8", "{\"a\xED\xA0\x80\":1}", 0, {"invalid UTF-8"}),
      with_header("LoneSurrogate", R"({"a\ud800":1})", 0, {"a lone surrogate"}),
      with_header("LowSurrogateFirst", R"({"a\udc00\ud800":1})", 0, {"a lone surrogate"}),
      with_header("NulInName", R"({"a\u0000":1})", 0, {"a NUL in a string"}),
      with_header("ControlCharacter", "{\"a\nb\":1}", 0, {"a control character"}),
      with_header("UnknownEscape", R"({"\x":1})", 0, {"an unknown escape"}),
      with_header("LongName", "{" + entry(std::string(1025, 'n'), "F32", "1", 0, 4) + "}", 4,
                  {"a string longer than 1.0 KiB"}),
      with_header("EmptyName", "{" + entry("", "F32", "1", 0, 4) + "}", 4,
                  {"a tensor without a name"}),
      with_header("SameNameTwice", "{" + a + "," + entry("a", "F32", "1", 4, 8) + "}", 8,
                  {"tensor 'a'", "occurs twice"}),
      with_header("SameNameTwiceByEscape", "{" + a + "," + entry("\\u0061", "F32", "1", 4, 8) + "}",
                  8, {"tensor 'a'", "occurs twice"}),
      with_header("MetadataTwice", R"({"__metadata__":{},"__metadata__":{}})", 0,
                  {"__metadata__ occurs twice"}),
      with_header("MetadataNumber", R"({"__metadata__":{"a":1}})", 0, {"expected '\"'"}),
      with_header("TensorIsNull", R"({"a":null})", 0, {"tensor 'a'", "expected '{'"}),
  };
}

std::vector<HostileFile> broken_entries() {
  const auto file = [](const std::string& what, const std::string& body,
                       const std::vector<std::string>& parts) {
    return with_header(what, R"({"w":{)" + body + "}}", 4, parts);
  };
  const std::string range = R"("data_offsets":[0,4])";
  const std::string start = R"("dtype":"F32",)" + range + R"(,"shape":)";
  return {
      file("NoDtype", R"("shape":[1],)" + range, {"tensor 'w'", "no 'dtype'"}),
      file("NoShape", R"("dtype":"F32",)" + range, {"tensor 'w'", "no 'shape'"}),
      file("NoRange", R"("dtype":"F32","shape":[1])", {"tensor 'w'", "no 'data_offsets'"}),
      file("DtypeTwice", R"("dtype":"F32","dtype":"F32","shape":[1],)" + range,
           {"tensor 'w'", "key 'dtype' occurs twice"}),
      file("UnknownKey", R"("dtype":"F32","strides":[1],"shape":[1],)" + range,
           {"tensor 'w'", "unknown key 'strides'"}),
      file("UnknownDtype", R"("dtype":"F4","shape":[8],)" + range,
           {"tensor 'w'", "dtype 'F4' is not supported"}),
      file("NegativeDimension", start + "[-1]", {"tensor 'w'", "a negative number"}),
      file("RealDimension", start + "[1.0]", {"tensor 'w'", "not an integer"}),
      file("ExponentDimension", start + "[1e0]", {"tensor 'w'", "not an integer"}),
      file("LeadingZero", start + "[01]", {"tensor 'w'", "leading zero"}),
      file("TextDimension", start + R"(["1"])", {"tensor 'w'", "expected an integer"}),
      file("NestedShape", start + "[[1]]", {"tensor 'w'", "expected an integer"}),
      file("DimensionOf64Bits", start + "[9223372036854775808]",
           {"tensor 'w'", "a number outside 63 bits"}),
      file("NineDimensions", start + "[1,1,1,1,1,1,1,1,1]", {"tensor 'w'", "more than 8 dimen"}),
      // The shapes have 2^62 x 4 bytes, and a product that overflows to exactly 4 bytes.
      file("ShapeOverflows", start + "[4611686018427387904]",
           {"tensor 'w'", "larger than 63 bits"}),
      file("ProductWrapsToRightLength", start + "[4294967297,4294967297]",
           {"tensor 'w'", "larger than 63 bits"}),
      file("ZeroHidesOverflow", start + "[4611686018427387904,4611686018427387904,0]",
           {"tensor 'w'", "larger than 63 bits"}),
      file("ShapeTooLarge", start + "[2]", {"tensor 'w'", "[2] of F32 needs 8", "give 4"}),
      file("ShapeTooSmall", start + "[0]", {"tensor 'w'", "[0] of F32 needs 0", "give 4"}),
      file("RangeOfThree", R"("dtype":"F32","shape":[1],"data_offsets":[0,2,4])",
           {"tensor 'w'", "expected ']'"}),
      file("RangeBackwards", R"("dtype":"F32","shape":[1],"data_offsets":[4,0])",
           {"tensor 'w'", "[4, 0] end before they begin"}),
      file("RangeBeyondTheFile", R"("dtype":"F32","shape":[2],"data_offsets":[0,8])",
           {"tensor 'w'", "ends at byte 8", "only 4 bytes", "cut short"}),
  };
}

std::vector<HostileFile> broken_ranges() {
  const std::string a = entry("a", "F32", "1", 0, 4);
  return {
      with_header("HoleAtTheStart", "{" + entry("b", "F32", "1", 4, 8) + "}", 8,
                  {"tensor 'b'", "4 bytes before its data belong to no tensor"}),
      with_header("HoleInTheMiddle", "{" + a + "," + entry("b", "F32", "1", 8, 12) + "}", 12,
                  {"tensor 'b'", "4 bytes before its data belong to no tensor"}),
      with_header("BytesAtTheEnd", "{" + a + "}", 5,
                  {"tensor 'a'", "1 bytes after its data belong to no tensor"}),
      with_header("DataWithoutTensors", "{}", 5, {"5 bytes of data, but no tensors"}),
      with_header("Overlap", "{" + a + "," + entry("b", "F32", "1", 2, 6) + "}", 6,
                  {"tensor 'b'", "overlaps that of 'a'"}),
      with_header("SameRangeTwice", "{" + a + "," + entry("b", "F32", "1", 0, 4) + "}", 4,
                  {"tensor 'b'", "overlaps that of 'a'"}),
      with_header("NameWithControlCharacters", "{" + entry("\\u001b[2J", "F32", "1", 4, 8) + "}", 8,
                  {"tensor '\\x1b[2J'"}),
  };
}

std::string case_name(const testing::TestParamInfo<HostileFile>& info) {
  return info.param.what;
}

INSTANTIATE_TEST_SUITE_P(Frames, Hostile, testing::ValuesIn(broken_frames()), case_name);
INSTANTIATE_TEST_SUITE_P(Json, Hostile, testing::ValuesIn(broken_json()), case_name);
INSTANTIATE_TEST_SUITE_P(Entries, Hostile, testing::ValuesIn(broken_entries()), case_name);
INSTANTIATE_TEST_SUITE_P(Ranges, Hostile, testing::ValuesIn(broken_ranges()), case_name);

struct ValidFile {
  std::string what;
  std::string bytes;
  std::vector<std::string> names;  // in byte order
};

void PrintTo(const ValidFile& file, std::ostream* out) {
  *out << file.what;
}

class Valid : public testing::TestWithParam<ValidFile> {};

// Unusual but legal files are accepted; the reference implementation accepts all of them too.
TEST_P(Valid, FileIsAccepted) {
  const TemporaryDirectory directory;
  const std::string path = directory / "good.safetensors";
  write_text(path, GetParam().bytes);
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::vector<std::string> names;
  for (const TensorInfo& tensor : file.tensors()) {
    names.push_back(tensor.name);
    EXPECT_EQ(file.find(tensor.name), &tensor);
  }
  EXPECT_EQ(names, GetParam().names);
}

std::vector<ValidFile> valid_files() {
  const auto file = [](const std::string& what, const std::string& json, size_t data_bytes,
                       const std::vector<std::string>& names) {
    return ValidFile{what, safetensors_bytes(json, data_bytes), names};
  };
  const std::string a = entry("a", "F32", "1", 0, 4);
  const std::string b = entry("b", "BF16", "2,1", 4, 8);
  const std::string long_name(1024, 'n');
  return {
      file("NoTensors", "{}", 0, {}),
      file("OnlyMetadata", R"({"__metadata__":{"format":"pt"}})", 0, {}),
      file("Scalar", "{" + entry("s", "F16", "", 0, 2) + "}", 2, {"s"}),
      file("EmptyTensor", "{" + entry("e", "F32", "0,3", 0, 0) + "," + a + "}", 4, {"e", "a"}),
      file("EmptyTensorAtTheEnd", "{" + a + "," + entry("e", "F32", "0", 4, 4) + "}", 4,
           {"a", "e"}),
      file("HeaderInAnotherOrder", "{" + b + "," + a + "}", 8, {"a", "b"}),
      file("SpacesAndNewLines", "{\n\t" + a + " , " + b + "\r\n}   ", 8, {"a", "b"}),
      file("KeysInAnotherOrder", R"({"a":{"data_offsets":[0,4],"shape":[1],"dtype":"F32"}})", 4,
           {"a"}),
      file("MetadataLast", "{" + a + R"(,"__metadata__":{"k":"v"}})", 4, {"a"}),
      file("EscapedName", "{" + entry("\\u00e9\\ud83d\\ude00\\/", "F32", "1", 0, 4) + "}", 4,
           {"\u00e9\U0001F600/"}),
      file("Utf8Name", "{" + entry("\u00e9\U0001F600", "F32", "1", 0, 4) + "}", 4,
           {"\u00e9\U0001F600"}),
      file("LongestName", "{" + entry(long_name, "F32", "1", 0, 4) + "}", 4, {long_name}),
      file("EightDimensions", "{" + entry("a", "F32", "1,1,1,1,1,1,1,1", 0, 4) + "}", 4, {"a"}),
      file("ForeignDtypes",
           "{" + entry("u", "U8", "3", 0, 3) + "," + entry("q", "F8_E4M3", "1", 3, 4) + "," +
               entry("i", "I64", "1", 4, 12) + "," + entry("o", "BOOL", "2", 12, 14) + "}",
           14, {"u", "q", "i", "o"}),
  };
}

INSTANTIATE_TEST_SUITE_P(Files, Valid, testing::ValuesIn(valid_files()),
                         [](const auto& info) { return info.param.what; });

// Any range of a tensor can be read.
TEST(SafetensorsFile, ReadsAnyRangeOfATensor) {
  const TemporaryDirectory directory;
  const std::string bytes = safetensors_bytes(
      "{" + entry("a", "U8", "5", 0, 5) + "," + entry("b", "U8", "7", 5, 12) + "}", 12);
  write_text(directory / "x.safetensors", bytes);
  const SafetensorsFile file = SafetensorsFile::open(directory / "x.safetensors");
  const TensorInfo& b = file.tensor("b");
  const std::string data = bytes.substr(bytes.size() - 7);
  for (size_t begin = 0; begin <= 7; ++begin) {
    for (size_t count = 0; begin + count <= 7; ++count) {
      std::string out(count, '?');
      file.read(b, static_cast<Bytes>(begin), std::as_writable_bytes(std::span<char>(out)));
      EXPECT_EQ(out, data.substr(begin, count));
    }
  }
}

// A range outside of its tensor is refused.
TEST(SafetensorsFile, NeverReadsOutsideATensor) {
  const TemporaryDirectory directory;
  write_text(directory / "x.safetensors",
             safetensors_bytes("{" + entry("a", "U8", "4", 0, 4) + "}", 4));
  const SafetensorsFile file = SafetensorsFile::open(directory / "x.safetensors");
  std::vector<std::byte> out(4);
  EXPECT_THROW(file.read(file.tensor("a"), 1, out), CheckFailure);
  EXPECT_THROW(file.read(file.tensor("a"), -1, out), CheckFailure);
  EXPECT_THROW(file.read(file.tensor("a"), INT64_MAX, out), CheckFailure);
  EXPECT_THROW(file.tensor("b"), DataError);
}

// A file that was cut after it was opened gives an error.
TEST(SafetensorsFile, ReportsAFileThatWasCutAfterItWasOpened) {
  const TemporaryDirectory directory;
  const std::string path = directory / "x.safetensors";
  write_text(path, safetensors_bytes("{" + entry("a", "U8", "4", 0, 4) + "}", 4));
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  std::vector<std::byte> out(4);
  const std::string error = error_of<IoError>([&] { file.read(file.tensor("a"), 0, out); });
  expect_parts(error, {path, "the file ends at byte"});
}

// The header's hash depends on names, shapes and types.
TEST(SafetensorsFile, HeaderHashDependsOnNamesShapesAndTypes) {
  const TemporaryDirectory directory;
  const auto hash_of = [&](const std::string& dtype, const std::string& name) {
    write_text(directory / "x.safetensors",
               safetensors_bytes("{" + entry(name, dtype, "1", 0, 2) + "}", 2));
    return SafetensorsFile::open(directory / "x.safetensors").header_hash();
  };
  EXPECT_EQ(hash_of("F16", "a"), hash_of("F16", "a"));
  EXPECT_NE(hash_of("F16", "a"), hash_of("BF16", "a"));
  EXPECT_NE(hash_of("F16", "a"), hash_of("F16", "b"));
}

}  // namespace
}  // namespace longshore
