// The sketches that golden cases hold in place of tensors find what a comparison of all elements
// finds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/random.h"
#include "tests/fakes/sketch.h"
#include "tests/fakes/test_files.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

constexpr double kTolerance = 1e-4;

std::vector<std::string> all_models() {
  return joined(golden_names(), expert_golden_names());
}

// Returns the largest tensor of a golden model. Its files may be several.
std::vector<float> largest_tensor(const std::string& model) {
  std::vector<float> largest;
  for (const auto& entry : std::filesystem::directory_iterator(golden_directory(model))) {
    if (entry.path().extension() != ".safetensors") continue;
    for (auto& [name, values] : read_tensors(entry.path())) {
      if (values.size() > largest.size()) largest = std::move(values);
    }
  }
  return largest;
}

// Goal: one wrong element of the largest tensor of every model is found from the same size on as by
// the norm of all differences, wherever it is. Whole runs compare weights within 1e-4.
TEST(Sketch, FindsOneWrongElementOfTheLargestTensorOfEveryModel) {
  for (const std::string& model : all_models()) {
    const std::vector<float> right = largest_tensor(model);
    ASSERT_GT(right.size(), 2000u) << model;
    const Sketch sketch = sketch_of(right);
    EXPECT_EQ(relative_error(right, sketch), 0.0);
    std::vector<float> wrong = right;
    for (size_t i = 0; i < right.size(); i += right.size() / 25) {
      for (const double factor : {-1.1, -0.9, 0.9, 1.1}) {
        wrong[i] = static_cast<float>(right[i] + factor * kTolerance * sketch.norm);
        EXPECT_EQ(relative_error(wrong, sketch) > kTolerance, std::abs(factor) > 1.0)
            << model << " element " << i << " factor " << factor;
      }
      wrong[i] = std::nanf("");
      EXPECT_FALSE(relative_error(wrong, sketch) <= kTolerance) << model << " element " << i;
      wrong[i] = right[i];
    }
  }
}

// Goal: where all elements differ, or a row of 16, the estimate is within a factor of 2.5 of the
// distance.
TEST(Sketch, EstimatesTheDistanceOfManyWrongElements) {
  for (const std::string& model : all_models()) {
    const std::vector<float> right = largest_tensor(model);
    const Sketch sketch = sketch_of(right);
    for (const size_t count : {size_t{16}, right.size()}) {
      std::vector<float> wrong = right;
      double squares = 0.0;
      for (size_t i = 0; i < count; ++i) {
        const auto word = philox4x32({static_cast<uint32_t>(i), 1, 0, 0}, {1, 0})[0];
        wrong[i] += 0.01F * (static_cast<float>(word) * 0x1p-32F - 0.5F);
        squares += std::pow(double{wrong[i]} - right[i], 2.0);
      }
      const double ratio = distance(wrong, sketch) / std::sqrt(squares);
      EXPECT_GT(ratio, 0.4) << model << " " << count;
      EXPECT_LT(ratio, 2.5) << model << " " << count;
    }
  }
}

// Goal: this program and sketches.py compute the same: these numbers are from sketches.py.
TEST(Sketch, IsThatOfSketchesPy) {
  std::vector<float> values;
  for (int i = 0; i < 40; ++i) values.push_back(static_cast<float>(i * 7 % 11 - 5));
  const Sketch sketch = sketch_of(values);
  EXPECT_DOUBLE_EQ(sketch.norm, std::sqrt(414.0));
  EXPECT_EQ(sketch.place, 0u);
  EXPECT_EQ(sketch.largest, -5.0);
  const std::array<double, 8> sums = {14.0, 8.0, 6.0, -8.0, 20.0, 6.0, -16.0, 34.0};
  EXPECT_EQ(sketch.sums, sums);
}

// Goal: a tensor of another number of elements fits no sketch.
TEST(Sketch, OfAnotherNumberOfElementsFitsNothing) {
  const std::vector<float> values = largest_tensor("llama");
  const Sketch sketch = sketch_of(values);
  EXPECT_TRUE(std::isinf(distance(std::span(values).first(values.size() - 1), sketch)));
}

}  // namespace
}  // namespace longshore
