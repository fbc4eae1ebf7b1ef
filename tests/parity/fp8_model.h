// A golden model as its makers would publish it in block-scaled fp8: codes and scales of the
// blocks' matrices, everything else as it was. Test code.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "base/fp8.h"
#include "base/json.h"
#include "base/packed_format.h"
#include "tests/parity/edited_model.h"

namespace longshore {

// Returns whether a tensor is a matrix of a block, or those of its experts. Routers are not packed,
// as in published models.
inline bool is_packed_matrix(const std::string& name, const std::vector<int64_t>& shape) {
  if (!name.starts_with("model.layers.") || name.ends_with("_bias")) return false;
  if (name.ends_with(".gate.weight") || name.ends_with(".router.weight")) return false;
  return shape.size() == 2 || (shape.size() == 3 && name.find(".experts.") != name.npos);
}

// Calls use(shape, values) for the matrix, or for that of each expert.
template <typename Use>
void for_matrices(const std::vector<int64_t>& shape, std::vector<float>& values, const Use& use) {
  const std::span<const int64_t> matrix = std::span(shape).last(2);
  const auto count = static_cast<size_t>(matrix[0] * matrix[1]);
  for (size_t begin = 0; begin < values.size(); begin += count) {
    use(matrix, std::span(values).subspan(begin, count));
  }
}

inline std::vector<std::byte> packed_matrix(PackedFormat format, std::span<const int64_t> shape,
                                            std::span<const float> values) {
  std::vector<std::byte> bytes(static_cast<size_t>(packed_bytes(format, shape)));
  encode_packed(
      format, shape,
      [&values](int64_t begin, std::span<float> out) {
        std::copy_n(values.begin() + begin, out.size(), out.begin());
      },
      bytes);
  return bytes;
}

// Writes the model in fp8 and replaces its values by those that the files then stand for.
inline void write_in_fp8(EditedModel& model) {
  std::vector<SafetensorsWriter::Tensor> tensors;
  std::vector<std::vector<std::byte>> contents;
  const auto add = [&](SafetensorsWriter::Tensor tensor, std::span<const std::byte> bytes) {
    tensors.push_back(std::move(tensor));
    contents.emplace_back(bytes.begin(), bytes.end());
  };
  for (auto& [name, values] : model.values) {
    const std::vector<int64_t>& shape = model.shapes.at(name);
    if (!is_packed_matrix(name, shape)) {
      add({name, TensorDType::kF32, shape}, std::as_bytes(std::span(values)));
      continue;
    }
    std::vector<std::byte> codes, scales;
    for_matrices(shape, values, [&](std::span<const int64_t> matrix, std::span<float> of_one) {
      const Fp8Layout layout(matrix[0], matrix[1]);
      const std::vector<std::byte> bytes = packed_matrix(PackedFormat::kFp8, matrix, of_one);
      const auto begin = bytes.begin() + layout.codes_begin();
      codes.insert(codes.end(), begin, begin + layout.elements());
      scales.insert(scales.end(), bytes.begin(), bytes.begin() + layout.scales_bytes());
      decode_fp8(layout, bytes, 0, of_one);
    });
    std::vector<int64_t> blocks = shape;
    for (int64_t& size : std::span(blocks).last(2)) size = (size + 127) / 128;
    add({name, TensorDType::kF8E4M3, shape}, codes);
    add({name + "_scale_inv", TensorDType::kF32, blocks}, scales);
  }
  SafetensorsWriter writer(model.directory() + "/model.safetensors", tensors, {{"format", "pt"}});
  for (const std::vector<std::byte>& bytes : contents) writer.append(bytes);
  writer.finish();
  const std::string path = model.directory() + "/config.json";
  Json config = read_json_file(path, {});
  config["quantization_config"] = {
      {"quant_method", "fp8"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {128, 128}}};
  std::filesystem::remove(path);
  std::ofstream(path) << config.dump(2);
}

}  // namespace longshore
