// The size of an export, which a plan says before the run: that of the tensors in the files.
#include <gtest/gtest.h>

#include "base/bytes.h"
#include "base/file.h"
#include "hf/safetensors_reader.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

Bytes tensor_bytes(const std::string& path) {
  Bytes sum = 0;
  const auto file = SafetensorsFile::open(path);
  for (const TensorInfo& tensor : file.tensors()) sum += tensor.bytes;
  return sum;
}

// Goal: the plan of a run says the bytes that its export has, in the types of the model's files, in
// units of any choice.
TEST(ExportSize, IsThatOfThePlan) {
  const Arguments lora = {"--adapter.kind=lora", "--adapter.r=4"};
  for (const std::string golden : {"llama", "llama-tied", "llama-bf16", "gpt2"}) {
    for (const Arguments& more : std::vector<Arguments>{
             {"--fsdp.units=auto"}, {"--fsdp.units=block"}, joined(lora, {"--fsdp.units=half"})}) {
      const bool adapter = more.size() > 1;
      if (adapter && golden == "gpt2") continue;
      RunDriver run("export-size");
      ASSERT_EQ(run.train(joined(joined(RunDriver::golden_arguments(golden),
                                        {"--train.steps=1", "--checkpoint.export=end"}),
                                 more)),
                0);
      const std::string plan = read_whole_file(run.directory() + "/plan.txt", 1 << 20);
      const std::string name = adapter ? "/hf/adapter_model.safetensors" : "/hf/model.safetensors";
      const Bytes written = tensor_bytes(run.directory() + name);
      EXPECT_NE(plan.find("an export about " + format_bytes(written) + "\n"), std::string::npos)
          << golden << " " << more.back() << ", " << format_bytes(written) << ": " << plan;
    }
  }
}

}  // namespace
}  // namespace longshore
