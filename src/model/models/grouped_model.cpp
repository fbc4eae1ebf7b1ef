#include "model/models/grouped_model.h"

#include <algorithm>
#include <functional>
#include <set>

#include "base/errors.h"
#include "model/units/unit.h"

namespace longshore {
namespace {

// Adds a member's leaves to its group's list. A parameter that several members use keeps the leaf
// of its owner, which comes first.
void add_leaves(const UnitCode& member, const std::vector<int32_t>& parameters,
                const std::vector<at::Tensor>& views, std::vector<at::Tensor>& leaves) {
  std::vector<at::Tensor> own;
  for (const int32_t index : parameters) own.push_back(views[static_cast<size_t>(index)]);
  own = member.leaves(own);
  for (size_t i = 0; i < own.size(); ++i) {
    at::Tensor& leaf = leaves.at(static_cast<size_t>(parameters[i]));
    if (!leaf.defined()) leaf = own[i];
  }
}

// The members of a group except the loss; they run one after another, forward and backward.
class Chain {
 public:
  struct Member {
    const Unit* unit = nullptr;
    std::vector<int32_t> parameters;       // indices into the group's parameters
    size_t results = 0;                    // UnitSpec::results of the member
    std::vector<CarryTensorSpec> in = {};  // its input
  };

  explicit Chain(std::vector<Member> members) : members_(std::move(members)) {}

  // The signature is empty if that of any member is. Members run one after the other, so the
  // attention is the largest.
  UnitTraits traits(const UnitUse& use) const {
    UnitTraits all;
    std::set<int64_t, std::greater<>> lengths = {use.longest_document};
    bool unlike_others = false;
    for (const Member& member : members_) {
      const UnitTraits own = member.unit->traits(use);
      unlike_others = unlike_others || own.signature.empty();
      all.signature += own.signature + "; ";
      lengths.insert(own.documents.begin(), own.documents.end());
      if (&member == &members_.front()) all.worst_input = own.worst_input;
      all.idle_elements += own.idle_elements;
      all.activation_elements += own.activation_elements;
      all.attention_width += own.attention_width;
      all.has_router = all.has_router || own.has_router;
      const auto width = [](const AttentionHeads& heads) { return heads.heads * heads.head_dim; };
      if (width(own.attention) > width(all.attention)) all.attention = own.attention;
    }
    if (unlike_others) all.signature.clear();
    all.documents.assign(lengths.begin(), lengths.end());
    return all;
  }

  void add_leaves(const std::vector<at::Tensor>& views, std::vector<at::Tensor>& leaves) const {
    for (const Member& member : members_) {
      longshore::add_leaves(*member.unit, member.parameters, views, leaves);
    }
  }

  Carry forward(UnitParameters parameters, Carry carry, const MicroBatch& batch) const {
    for (size_t i = 0; i < members_.size(); ++i) {
      carry = forward_of(i, parameters, carry, batch);
    }
    return carry;
  }

  // Returns the first `count` of the members' inputs and the last output, without graphs.
  std::vector<Carry> carries(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                             size_t count) const {
    const at::NoGradGuard no_grad;
    std::vector<Carry> carries = {in};
    for (size_t i = 0; i + 1 < count; ++i) {
      carries.push_back(forward_of(i, parameters, carries.back(), batch));
    }
    return carries;
  }
  std::vector<Carry> inputs(UnitParameters parameters, const Carry& in,
                            const MicroBatch& batch) const {
    return carries(parameters, in, batch, members_.size());
  }
  std::vector<Carry> inputs_and_output(UnitParameters parameters, const Carry& in,
                                       const MicroBatch& batch) const {
    return carries(parameters, in, batch, members_.size() + 1);
  }

  // Turns the gradient of the last output into that of the first input. `inputs` holds each
  // member's input; each is freed as soon as its member is done.
  Carry backward(UnitParameters parameters, std::vector<Carry> inputs, const MicroBatch& batch,
                 Carry gradient, GradientSink& sink) const {
    for (size_t i = members_.size(); i-- > 0; inputs.pop_back()) {
      MicroBatch own;
      gradient = member_backward(members_[i], parameters, inputs.back(), batch_of(i, batch, own),
                                 gradient, sink);
    }
    return gradient;
  }

 private:
  // Returns the batch itself if it keeps no results, else `own`, a copy with the results of that
  // member alone.
  const MicroBatch& batch_of(size_t member, const MicroBatch& batch, MicroBatch& own) const {
    if (batch.results.places.empty()) return batch;
    own = batch;
    size_t first = 0;
    for (size_t i = 0; i < member; ++i) first += members_[i].results;
    const auto begin = batch.results.places.begin() + static_cast<int64_t>(first);
    own.results.places.assign(begin, begin + static_cast<int64_t>(members_[member].results));
    return own;
  }
  Carry forward_of(size_t member, UnitParameters parameters, const Carry& in,
                   const MicroBatch& batch) const {
    MicroBatch own;
    const PickedParameters picked(parameters, members_[member].parameters);
    return members_[member].unit->forward(picked.get(), in, batch_of(member, batch, own));
  }
  static Carry member_backward(const Member& member, UnitParameters parameters, const Carry& in,
                               const MicroBatch& batch, const Carry& gradient, GradientSink& sink);

  std::vector<Member> members_;
};

Carry Chain::member_backward(const Member& member, UnitParameters parameters, const Carry& in,
                             const MicroBatch& batch, const Carry& gradient, GradientSink& sink) {
  const PickedParameters picked(parameters, member.parameters);
  const UnitParameters own = picked.get();
  MappedSink member_sink(&sink, &member.parameters);
  if (member.unit->has_own_backward()) {
    const at::NoGradGuard no_grad;
    return member.unit->backward(own, in, batch, gradient, member_sink);
  }
  Carry leaves;
  for (const at::Tensor& tensor : in) leaves.push_back(tensor.detach().requires_grad_(true));
  MicroBatch recomputed = batch;
  recomputed.graph_only = true;
  Carry out;
  {
    const at::AutoGradMode grad_mode(true);
    out = member.unit->forward(own, leaves, recomputed);
  }
  Carry grads = autograd_backward(own, leaves, out, gradient, /*want_grad_in=*/true, member_sink);
  // Several members add to these, as several units do to a carry's.
  for (size_t i = 0; i < grads.size(); ++i) {
    if (member.in.at(i).wide_gradient && grads[i].defined()) grads[i] = grads[i].to(at::kFloat);
  }
  return grads;
}

class GroupedUnit : public Unit {
 public:
  explicit GroupedUnit(Chain chain) : chain_(std::move(chain)) {}
  UnitTraits traits(const UnitUse& use) const override { return chain_.traits(use); }
  std::vector<at::Tensor> leaves(const std::vector<at::Tensor>& views) const override {
    std::vector<at::Tensor> leaves(views.size());
    chain_.add_leaves(views, leaves);
    return leaves;
  }
  Carry forward(UnitParameters parameters, const Carry& in,
                const MicroBatch& batch) const override {
    return chain_.forward(parameters, in, batch);
  }
  bool has_own_backward() const override { return true; }
  Carry backward(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                 const Carry& grad_out, GradientSink& sink) const override {
    return chain_.backward(parameters, chain_.inputs(parameters, in, batch), batch, grad_out, sink);
  }

 private:
  Chain chain_;
};

class GroupedLoss : public LossUnit {
 public:
  GroupedLoss(Chain chain, const LossUnit* loss, std::vector<int32_t> parameters)
      : chain_(std::move(chain)), loss_(loss), parameters_(std::move(parameters)) {}

  std::vector<at::Tensor> leaves(const std::vector<at::Tensor>& views) const override {
    std::vector<at::Tensor> leaves(views.size());
    chain_.add_leaves(views, leaves);
    add_leaves(*loss_, parameters_, views, leaves);
    return leaves;
  }
  UnitTraits traits(const UnitUse& use) const override {
    UnitTraits traits = chain_.traits(use);
    const UnitTraits loss = loss_->traits(use);
    const bool unlike_others = traits.signature.empty() || loss.signature.empty();
    traits.signature = unlike_others ? std::string() : traits.signature + loss.signature;
    traits.positions_at_once = loss.positions_at_once;
    traits.gpu_bytes_of_position = loss.gpu_bytes_of_position;
    traits.teacher_tokens = loss.teacher_tokens;
    return traits;
  }
  Result loss(UnitParameters parameters, const Carry& in, const MicroBatch& batch) const override {
    return loss_->loss(PickedParameters(parameters, parameters_).get(),
                       chain_.forward(parameters, in, batch), batch);
  }
  Result loss_and_gradients(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                            double scale, bool, GradientSink& sink) const override {
    std::vector<Carry> carries = chain_.inputs_and_output(parameters, in, batch);
    MappedSink member_sink(&sink, &parameters_);
    Result result =
        loss_->loss_and_gradients(PickedParameters(parameters, parameters_).get(), carries.back(),
                                  batch, scale, /*want_grad_in=*/true, member_sink);
    carries.pop_back();
    result.grad_in =
        chain_.backward(parameters, std::move(carries), batch, std::move(result.grad_in), sink);
    return result;
  }
  at::Tensor logits(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                    const at::Tensor& positions) const override {
    return loss_->logits(PickedParameters(parameters, parameters_).get(),
                         chain_.forward(parameters, in, batch), batch, positions);
  }

 private:
  Chain chain_;
  const LossUnit* loss_;
  std::vector<int32_t> parameters_;
};

// Returns the index in the group's list of each of the member's parameters, owned, then tied.
std::vector<int32_t> places_of(const ModelSpec& model, UnitId member, const ModelSpec& merged,
                               const UnitSpec& group) {
  std::vector<ParamSpec> all = group.parameters;
  for (ParamRef ref : group.tied) all.push_back(merged.parameter(ref));
  std::vector<int32_t> places;
  const auto add = [&](const ParamSpec& parameter) {
    // A group may multiply by a table that its first member looks up.
    const auto found = std::ranges::find_if(all, [&parameter](ParamSpec candidate) {
      candidate.looked_up = parameter.looked_up;
      return candidate == parameter;
    });
    LONGSHORE_CHECK(found != all.end()) << "no " << parameter.name << " in " << group.name;
    places.push_back(static_cast<int32_t>(found - all.begin()));
  };
  const UnitSpec& unit = model.unit(member);
  for (const ParamSpec& parameter : unit.parameters) add(parameter);
  for (ParamRef ref : unit.tied) add(model.parameter(ref));
  return places;
}

}  // namespace

GroupedModel::GroupedModel(const Model* model, const std::vector<std::vector<UnitId>>& groups)
    : model_(model), groups_(groups), spec_(merge_units(model->spec(), groups)) {
  for (size_t i = 0; i < groups_.size(); ++i) {
    const std::vector<UnitId>& members = groups_[i];
    const bool last = i + 1 == groups_.size();
    if (members.size() == 1) {
      if (!last) units_.emplace_back();
      continue;
    }
    std::vector<Chain::Member> chain;
    for (UnitId member : std::span(members).first(members.size() - (last ? 1 : 0))) {
      chain.push_back({&model->unit(member),
                       places_of(model->spec(), member, spec_, spec_.units[i]),
                       model->spec().unit(member).results.size(),
                       member.value > 0 ? model->spec().unit(UnitId(member.value - 1)).carry_out
                                        : std::vector<CarryTensorSpec>()});
    }
    if (last) {
      loss_ = std::make_unique<GroupedLoss>(
          Chain(std::move(chain)), &model->loss_unit(),
          places_of(model->spec(), members.back(), spec_, spec_.units[i]));
    } else {
      units_.push_back(std::make_unique<GroupedUnit>(Chain(std::move(chain))));
    }
  }
}

GroupedModel::~GroupedModel() = default;

const Unit& GroupedModel::unit(UnitId id) const {
  const auto index = static_cast<size_t>(id.value);
  const Unit* grouped = units_.at(index).get();
  return grouped != nullptr ? *grouped : model_->unit(groups_[index].front());
}

const LossUnit& GroupedModel::loss_unit() const {
  return loss_ != nullptr ? *loss_ : model_->loss_unit();
}

}  // namespace longshore
