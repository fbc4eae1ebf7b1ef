// Fixtures of the Hugging Face tests: temporary directories, hand-made safetensors files, small
// models. Each belongs to one test; one thread.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "hf/safetensors_writer.h"
#include "shard/unit_spec.h"

namespace longshore {

// TemporaryDirectory: a directory that is removed with its contents at the end of the test.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = std::filesystem::temp_directory_path() / "longshore_hf_XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) throw IoError("mkdtemp failed");
    path_ = pattern;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline void write_text(const std::string& path, std::string_view text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Returns the bytes of a safetensors file with any header text and `data_bytes` of data.
inline std::string safetensors_bytes(std::string_view json, size_t data_bytes) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(json.size() >> (8 * i) & 0xFF);
  out += json;
  for (size_t i = 0; i < data_bytes; ++i) out += static_cast<char>(i * 7 + 1);
  return out;
}

// Writes a valid file whose tensors hold distinct bytes; floats are small and finite.
inline void write_safetensors(const std::string& path,
                              const std::vector<SafetensorsWriter::Tensor>& tensors,
                              const SafetensorsMetadata& metadata = {{"format", "pt"}}) {
  SafetensorsWriter writer(path, tensors, metadata);
  uint32_t next = 1;
  for (const SafetensorsWriter::Tensor& tensor : tensors) {
    int64_t bytes = width_of(tensor.dtype);
    for (const int64_t dimension : tensor.shape) bytes *= dimension;
    std::vector<std::byte> data(static_cast<size_t>(bytes));
    for (std::byte& byte : data) byte = static_cast<std::byte>(next++ * 37 % 61);
    writer.append(data);
  }
  writer.finish();
}

// Returns the text of the error that `action` throws; without it the test fails.
template <typename ErrorType>
std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ErrorType& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another type of error: " << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

inline void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
  }
}

// Returns a spec of one unit with these parameters.
inline ModelSpec spec_of(std::vector<ParamSpec> parameters) {
  ModelSpec spec;
  spec.units.push_back({UnitId(0), "all", std::move(parameters), {}, {}});
  return spec;
}

inline ParamSpec parameter(std::string name, std::vector<int64_t> shape, bool frozen = false) {
  return {.name = std::move(name), .shape = std::move(shape), .frozen = frozen, .init = {}};
}

}  // namespace longshore
