#include "tests/model/golden_case.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/errors.h"
#include "tests/fakes/golden_weights.h"
#include "tests/fakes/test_files.h"

namespace longshore {
namespace {

// Returns the folders of golden cases; models with experts have a folder of their own.
std::vector<std::filesystem::path> golden_roots() {
  const std::filesystem::path parity = std::filesystem::path(test_data()) / "parity";
  std::vector<std::filesystem::path> roots = {parity / "golden"};
  if (std::filesystem::exists(parity / "golden_moe")) roots.push_back(parity / "golden_moe");
  return roots;
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  LONGSHORE_CHECK(file.good()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

std::map<std::string, at::Tensor> read_golden_tensors(const std::string& path) {
  std::map<std::string, at::Tensor> tensors;
  const std::string bytes = read_text(path);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), 8);
  const Json header = Json::parse(bytes.substr(8, header_bytes));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const bool bf16 = entry["dtype"] == "BF16";
    LONGSHORE_CHECK(bf16 || entry["dtype"] == "F32") << path << " " << name;
    at::Tensor tensor =
        at::empty(entry["shape"].get<std::vector<int64_t>>(), bf16 ? at::kBFloat16 : at::kFloat);
    const size_t begin = 8 + header_bytes + entry["data_offsets"][0].get<size_t>();
    std::memcpy(tensor.data_ptr(), bytes.data() + begin, tensor.nbytes());
    tensors[name] = tensor.to(at::kFloat);
  }
  return tensors;
}

std::vector<GoldenRow> read_golden_rows(const std::string& path) {
  std::vector<GoldenRow> rows;
  std::istringstream text(read_text(path));
  for (std::string line; std::getline(text, line);) {
    const Json json = Json::parse(line);
    GoldenRow row;
    row.tokens = json["input_ids"].get<std::vector<int64_t>>();
    row.targets = json.contains("labels") ? json["labels"].get<std::vector<int64_t>>() : row.tokens;
    row.targets.erase(row.targets.begin());
    row.targets.push_back(-100);
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<FileTensor> GoldenCase::file_tensors() const {
  std::vector<FileTensor> files;
  for (const auto& [tensor_name, tensor] : weights) {
    files.push_back({.name = tensor_name, .shape = tensor.sizes().vec()});
  }
  return files;
}

std::vector<std::string> golden_case_names() {
  std::vector<std::string> names;
  for (const std::filesystem::path& root : golden_roots()) {
    for (const auto& entry : std::filesystem::directory_iterator(root)) {
      if (entry.is_directory()) names.push_back(entry.path().filename());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

GoldenCase read_golden_case(const std::string& name) {
  std::filesystem::path directory;
  for (const std::filesystem::path& root : golden_roots()) {
    if (std::filesystem::exists(root / name)) directory = with_weights(root / name);
  }
  GoldenCase golden;
  golden.name = name;
  golden.config = Json::parse(read_text(directory / "config.json"));
  golden.arch = read_arch_spec(golden.config, name + "/config.json");
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string file = entry.path().filename();
    if (file.starts_with("model") && file.ends_with(".safetensors")) {
      golden.weights.merge(read_golden_tensors(entry.path()));
    }
  }
  golden.golden = read_sketches(directory / "golden_sketches.json");
  golden.facts = Json::parse(read_text(directory / "golden.json"));
  golden.rows = read_golden_rows(directory / "train.jsonl");
  return golden;
}

}  // namespace longshore
