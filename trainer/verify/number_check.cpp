#include "trainer/verify/number_check.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/errors.h"
#include "base/texts.h"
#include "trainer/verify/plain_decoder.h"

namespace longshore {
namespace {

constexpr int64_t kSliceElements = int64_t{1} << 24;  // head elements at once: 64 MiB

at::Tensor read_rows(const ModelSource& source, const ParamSpec& parameter, int64_t row,
                     int64_t rows) {
  const int64_t width = parameter.elements() / parameter.shape[0];
  at::Tensor values = at::empty({rows, width}, at::kFloat);
  source.read_initial(parameter.name, row * width,
                      {values.mutable_data_ptr<float>(), static_cast<size_t>(rows * width)});
  return values;
}

at::Tensor read_whole(const ModelSource& source, const ParamSpec& parameter) {
  return read_rows(source, parameter, 0, parameter.shape[0]).view(parameter.shape);
}

// Returns |x| of every row: fp64 [T].
at::Tensor row_norms(const at::Tensor& x) {
  return at::linalg_vector_norm(x.to(at::kDouble), 2, {-1});
}

// Packs several texts, or one, into a micro-batch.
MicroBatch batch_of(const Texts& texts, const std::map<int64_t, int64_t>& rows) {
  std::vector<int64_t> tokens, positions;
  MicroBatch batch;
  batch.document_starts.push_back(0);
  for (const std::vector<int64_t>& text : texts) {
    for (size_t i = 0; i < text.size(); ++i) {
      tokens.push_back(rows.at(text[i]));
      positions.push_back(static_cast<int64_t>(i));
    }
    batch.document_starts.push_back(static_cast<int64_t>(tokens.size()));
  }
  batch.tokens = at::tensor(tokens, at::kLong);
  batch.positions = at::tensor(positions, at::kLong);
  batch.targets = at::full({batch.tokens.size(0)}, -100, at::kLong);
  return batch;
}

// NumberCheck runs one unit after the other over the same texts.
class NumberCheck {
 public:
  NumberCheck(const ModelSource& source, const Texts& texts, Findings& findings)
      : source_(source), texts_(texts), findings_(findings), plain_(source.arch(), source.spec()) {
    for (const std::vector<int64_t>& text : texts) {
      for (const int64_t token : text) rows_.emplace(token, 0);
    }
    int64_t row = 0;
    for (auto& [token, place] : rows_) place = row++;
    packed_ = batch_of(texts, rows_);
    for (const std::vector<int64_t>& text : texts) alone_.push_back(batch_of({text}, rows_));
    states_.hidden.resize(texts.size());
    shared_.resize(texts.size());
  }

  PlainStates run(int64_t layers) {
    const at::NoGradGuard no_grad;
    embedding();
    if (source_.arch().layer_input > 0) layer_inputs();
    for (int64_t layer = 0; layer < layers; ++layer) block(layer);
    judge(packed_excess_,
          {"packing", std::to_string(texts_.size()) + " texts",
           "packed into one micro-batch they give what each gives alone",
           "packed into one micro-batch they give other numbers than alone"},
          findings_);
    head();
    return std::move(states_);
  }

 private:
  using Parameters = std::map<std::string, at::Tensor>;

  const UnitSpec& unit(int64_t index) const {
    return source_.spec().units.at(static_cast<size_t>(index));
  }

  PlainDecoder::Weights weights_in(const Parameters& parameters) const {
    return [&parameters](const std::string& name) { return parameters.at(name); };
  }

  Parameters read(const UnitSpec& unit) const {
    Parameters parameters;
    for (const ParamSpec& parameter : unit.parameters) {
      parameters[parameter.name] = read_whole(source_, parameter);
    }
    return parameters;
  }

  static std::vector<at::Tensor> in_order(const UnitSpec& unit, const Parameters& parameters) {
    std::vector<at::Tensor> list;
    for (const ParamSpec& parameter : unit.parameters) {
      list.push_back(parameters.at(parameter.name));
    }
    return list;
  }

  // Returns the rows of the texts' tokens.
  at::Tensor used_rows(const ParamSpec& table) const {
    std::vector<at::Tensor> rows;
    for (const auto& [token, place] : rows_) rows.push_back(read_rows(source_, table, token, 1));
    return at::cat(rows);
  }

  // Only the embedding rows of the used tokens are read, instead of the whole table.
  void embedding() {
    const UnitSpec& spec = unit(0);
    Parameters parameters;
    for (size_t i = 0; i < spec.parameters.size(); ++i) {
      const ParamSpec& parameter = spec.parameters[i];
      if (i > 0) {
        parameters[parameter.name] = read_whole(source_, parameter);
        continue;
      }
      parameters[parameter.name] = used_rows(parameter);
    }
    const at::Tensor table = parameters.at(spec.parameters[0].name);
    std::vector<at::Tensor> wanted;
    for (const MicroBatch& batch : alone_) {
      wanted.push_back(plain_.embed(table.index_select(0, batch.tokens), weights_in(parameters)));
    }
    compare(spec, in_order(spec, parameters), std::vector<Carry>(texts_.size()), wanted, {});
  }

  // Compares what the two units of the layers' inputs make together.
  void layer_inputs() {
    const UnitSpec &lookup = unit(1), &spec = unit(2);
    const Parameters parameters = read(spec);
    const at::Tensor table = used_rows(lookup.parameters.at(0));
    const auto found = [&](const at::Tensor& x, const MicroBatch& batch) {
      const std::vector<at::Tensor> rows = {table};
      const Carry carry = source_.model().unit(lookup.id).forward(rows, {x}, batch);
      return source_.model().unit(spec.id).forward(in_order(spec, parameters), carry, batch).at(1);
    };
    std::vector<at::Tensor> embedded;
    for (const std::vector<at::Tensor>& of_text : states_.hidden)
      embedded.push_back(of_text.back());
    const at::Tensor packed = found(at::cat(embedded), packed_);
    double worst = 0.0;
    for (size_t text = 0; text < texts_.size(); ++text) {
      const at::Tensor wanted =
          plain_.layer_inputs(table.index_select(0, alone_[text].tokens),
                              embedded[text].to(at::kDouble), weights_in(parameters));
      const at::Tensor alone = found(embedded[text], alone_[text]);
      const at::Tensor part = packed.narrow(0, packed_.document_starts[text], alone.size(0));
      const at::Tensor nothing = at::zeros_like(alone);
      worst = worse(worst, excess(alone, wanted, nothing, kSameInputs));
      packed_excess_ = worse(packed_excess_, excess(part, alone, nothing, kSameInputs));
      shared_[text].layer_inputs = wanted;
    }
    judge_layer(worst, spec);
  }

  void block(int64_t layer) {
    const UnitSpec& spec = unit(source_.arch().units_before_blocks() + layer);
    const Parameters parameters = read(spec);
    std::vector<Carry> in;
    std::vector<at::Tensor> wanted, sure;
    for (size_t text = 0; text < texts_.size(); ++text) {
      in.push_back(carry_into(layer, text));
      const PlainDecoder::BlockOutput out = plain_.block(layer, in.back().at(0).to(at::kDouble),
                                                         weights_in(parameters), shared_[text]);
      wanted.push_back(out.x);
      sure.push_back(out.sure);
    }
    compare(spec, in_order(spec, parameters), in, wanted, sure);
  }

  // Returns the plain decoder's numbers as the carry into the layer's block.
  Carry carry_into(int64_t layer, size_t text) const {
    Carry carry = {states_.hidden[text].back()};
    if (source_.arch().layer_input > 0) {
      carry.push_back(shared_[text].layer_inputs.to(at::kFloat));
    }
    for (const int64_t source : source_.arch().keys_behind(layer - 1)) {
      for (const at::Tensor& values : shared_[text].keys.at(source)) {
        carry.push_back(values.to(at::kFloat));
      }
    }
    return carry;
  }

  // Returns the carries of all texts as one; empty in the first unit.
  static Carry joined(const std::vector<Carry>& carries) {
    Carry all;
    for (size_t tensor = 0; tensor < carries.at(0).size(); ++tensor) {
      std::vector<at::Tensor> parts;
      for (const Carry& carry : carries) parts.push_back(carry.at(tensor));
      all.push_back(at::cat(parts));
    }
    return all;
  }

  // Runs a unit over all texts packed and over each alone, and passes the plain decoder's numbers
  // on to the next unit. `sure` limits the compared positions; undefined for all.
  void compare(const UnitSpec& spec, const std::vector<at::Tensor>& parameters,
               const std::vector<Carry>& in, const std::vector<at::Tensor>& wanted,
               const std::vector<at::Tensor>& sure) {
    const Unit& code = source_.model().unit(spec.id);
    const at::Tensor packed = code.forward(parameters, joined(in), packed_).at(0);
    double worst = 0.0;
    for (size_t text = 0; text < texts_.size(); ++text) {
      const at::Tensor alone = code.forward(parameters, in[text], alone_[text]).at(0);
      const int64_t begin = packed_.document_starts[text];
      const at::Tensor part = packed.narrow(0, begin, alone.size(0));
      const at::Tensor before = in[text].empty() ? at::zeros_like(alone) : in[text].at(0);
      const auto excess_of = [&](const at::Tensor& found, const at::Tensor& target) {
        if (sure.empty() || !sure[text].defined()) {
          return excess(found, target, before, kSameInputs);
        }
        const at::Tensor& rows = sure[text];
        if (rows.size(0) == 0) return 0.0;
        return excess(found.index_select(0, rows), target.index_select(0, rows),
                      before.index_select(0, rows), kSameInputs);
      };
      worst = worse(worst, excess_of(alone, wanted[text]));
      packed_excess_ = worse(packed_excess_, excess_of(part, alone));
      states_.hidden[text].push_back(wanted[text].to(at::kFloat));
    }
    judge_layer(worst, spec);
  }

  void judge_layer(double worst, const UnitSpec& spec) {
    judge(worst,
          {"layers", spec.name, "fp32 units and plain fp64 agree",
           "fp32 units and plain fp64 disagree"},
          findings_);
  }

  // Compares the head, in slices of the vocabulary, at the last position of each text.
  void head() {
    const UnitSpec& spec = unit(static_cast<int64_t>(source_.spec().units.size()) - 1);
    const bool tied = !spec.tied.empty();
    const ParamSpec& matrix =
        tied ? source_.spec().parameter(spec.tied[0]) : spec.parameters.back();
    Parameters parameters;
    for (const ParamSpec& parameter : spec.parameters) {
      if (&parameter == &matrix) continue;
      parameters[parameter.name] = read_whole(source_, parameter);
    }
    std::vector<at::Tensor> list;
    for (const ParamSpec& parameter : spec.parameters) {
      if (&parameter != &matrix) list.push_back(parameters.at(parameter.name));
    }
    list.emplace_back();
    std::vector<at::Tensor> last, normed;
    for (const std::vector<at::Tensor>& of_text : states_.hidden) {
      last.push_back(of_text.back().narrow(0, of_text.back().size(0) - 1, 1));
      normed.push_back(plain_.final_norm(last.back().to(at::kDouble), weights_in(parameters)));
    }
    const at::Tensor in = at::cat(last), plain_in = at::cat(normed);
    const at::Tensor positions = at::arange(in.size(0));
    std::vector<at::Tensor> found, wanted;
    const int64_t vocabulary = matrix.shape[0];
    const int64_t slice = std::max<int64_t>(1, kSliceElements / matrix.shape[1]);
    for (int64_t row = 0; row < vocabulary; row += slice) {
      list.back() = read_rows(source_, matrix, row, std::min(slice, vocabulary - row));
      found.push_back(source_.model().loss_unit().logits(list, {in}, {}, positions));
      wanted.push_back(plain_.logits(plain_in, list.back()));
    }
    const at::Tensor all = at::cat(wanted, 1);
    const double worst = excess(at::cat(found, 1), all, at::zeros_like(all), kSameInputs);
    judge(worst, {"layers", spec.name, "logits agree", "logits disagree"}, findings_);
    for (int64_t text = 0; text < all.size(0); ++text) {
      states_.last_logits.push_back(all.select(0, text));
    }
  }

  const ModelSource& source_;
  const Texts& texts_;
  Findings& findings_;
  PlainDecoder plain_;
  std::map<int64_t, int64_t> rows_;  // token -> its row in the reduced embedding
  MicroBatch packed_;
  std::vector<MicroBatch> alone_;
  PlainStates states_;
  std::vector<PlainDecoder::Shared> shared_;  // by text
  double packed_excess_ = 0.0;
};

}  // namespace

double worse(double a, double b) {
  return std::isnan(a) || b < a ? a : b;
}

double excess(const at::Tensor& found, const at::Tensor& wanted, const at::Tensor& before,
              Tolerance tolerance) {
  if (found.sizes() != wanted.sizes()) return HUGE_VAL;
  const at::Tensor target = wanted.to(at::kDouble);
  const at::Tensor apart = row_norms(found.to(at::kDouble) - target);
  const at::Tensor allowed = tolerance.of_change * row_norms(target - before.to(at::kDouble)) +
                             tolerance.of_size * row_norms(target) + 1e-30;
  return (apart / allowed).max().item<double>();
}

void judge(double excess, const Judged& judged, Findings& findings) {
  const std::string text = formatted("%.2g", excess);
  const bool good = excess <= 1.0;  // false for NaN
  findings.add(good ? Verdict::kOk : Verdict::kFailed, judged.check, judged.subject,
               good ? judged.if_good + ", within " + text + " of the tolerance"
                    : judged.if_bad + ": " + text + " times the tolerance");
}

PlainStates check_numbers(const ModelSource& source, const Texts& texts, int64_t layers,
                          Findings& findings) {
  return NumberCheck(source, texts, findings).run(layers);
}

}  // namespace longshore
