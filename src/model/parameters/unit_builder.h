// UnitBuilder: makes the list of the parameters of one unit: matrices with their biases and
// adapters, tables, experts, norms and single vectors. Local to a function; one thread. No
// LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/families/arch_spec.h"
#include "model/families/families.h"
#include "model/parameters/unit_parameters.h"
#include "shard/unit_spec.h"

namespace longshore {

inline InitSpec normal_init(double standard_deviation) {
  return {.kind = InitSpec::Kind::kNormal, .standard_deviation = standard_deviation};
}

class UnitBuilder {
 public:
  // `arch` must outlive the builder.
  UnitBuilder(const ArchSpec& arch, NameTable::Prefix prefix, int64_t layer)
      : arch_(arch), prefix_(prefix), layer_(layer) {}

  void matrix(Module module, int64_t out, int64_t in, bool bias, double scale = 1.0);
  // Says which matrices the module's weight holds, and its adapter's B of the same outputs: the
  // outputs of each, in turn (MatrixForm). One of the two was added before.
  void holds(Module module, const std::vector<int64_t>& outputs);
  // Returns whether a parameter of the module was added.
  bool has(Module module) const;
  void router(int64_t experts, int64_t in);
  // Adds a table of tokens or positions; the head's is a matrix whose rows are outputs.
  void table(Module module, int64_t rows);
  // Adds an expert's matrix, always [out, in], even if dense matrices are transposed.
  void expert_matrix(Module module, int64_t expert, int64_t out, int64_t in, double scale = 1.0);
  // Adds the matrices of all experts, in the layout of the family.
  void expert_matrices(Module module, int64_t out, int64_t in, double scale = 1.0);
  // Adds the adapter of all experts' matrices if they have one.
  void expert_adapter(Module module, int64_t out, int64_t in) {
    if (arch_.adapter.adapts(layer_, module)) add_adapter(module, out, in, arch_.moe.experts);
  }
  // Adds a vector that is initialised like a matrix.
  void vector(Module module, bool bias, int64_t width) {
    add(module, bias, {width}, normal_init(arch_.initializer_range));
  }
  void filled(Module module, std::vector<int64_t> shape, InitSpec init) {
    add(module, false, std::move(shape), init);
  }
  // Adds a bias that begins at zero.
  void zeros(Module module, int64_t width) {
    add(module, true, {width}, {.kind = InitSpec::Kind::kZeros});
  }
  // Adds values that the files hold and no run trains. `stays_fp32`: in bf16 runs, too, as in
  // transformers.
  void buffer(Module module, int64_t width, InitSpec::Kind init, bool stays_fp32);
  void norm(Module module, int64_t width, NormKind kind);

  std::vector<ModuleParameter> take() { return std::move(parameters_); }

 private:
  void add(Module module, bool bias, std::vector<int64_t> shape, InitSpec init,
           int64_t expert = -1);
  // Returns the name of PEFT's module, which is one in the names of transformers: there all experts
  // of a layer are one module, and the adapter of gate and up is inside of that of down.
  std::string adapter_module(Module module) const;
  // Adds A and B as PEFT begins them: A is uniform with the bound of torch's kaiming_uniform_(a =
  // sqrt(5)), which is 1 / sqrt(in), and B is zero. A magnitude begins as a norm of the weights
  // (AdaptedMatrix::norms), which no InitSpec says.
  void add_adapter(Module module, int64_t out, int64_t in, int64_t experts = 0);
  // Adds A, [rows, rank], and B, [hidden, rank], of a lookup, as PEFT begins them: A is zero and B
  // normal. PEFT's A is the transpose, whose columns belong to tokens. A magnitude belongs to a
  // column of the table.
  void add_lookup_adapter(Module module, int64_t rows);

  const ArchSpec& arch_;
  NameTable::Prefix prefix_;
  int64_t layer_;
  std::vector<ModuleParameter> parameters_;
};

}  // namespace longshore
