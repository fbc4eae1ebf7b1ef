#include "offload/forecast/rates_text.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "shard/state_format.h"

namespace longshore {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGiga = 1e9, kMicro = 1e-6;

std::string amount(double value, const char* unit) {
  char text[48];
  std::snprintf(text, sizeof text, "%.3g %s", value, unit);
  return text;
}

std::string bytes_text(double rate) {
  return amount(rate / kGiga, "GB/s");
}

std::string flops_text(double rate) {
  return rate < 1e12 ? amount(rate / kGiga, "GFLOP/s") : amount(rate / 1e12, "TFLOP/s");
}

void line(std::string& text, const std::string& name, double rate, double both = 0.0) {
  if (rate <= 0.0) return;
  text += "  " + name + ": " + bytes_text(rate);
  if (both > 0.0) text += ", " + bytes_text(both) + " with the other way busy too";
  text += "\n";
}

void collective_line(std::string& text, const std::string& name, const CollectiveRate& rate) {
  if (rate.bytes <= 0.0) return;
  text += "  " + name + ": " + bytes_text(rate.bytes);
  if (rate.start_seconds > 0.0) text += ", " + amount(rate.start_seconds / kMicro, "us") + " each";
  text += "\n";
}

std::string name_of_dtype(DType dtype) {
  return dtype == DType::kBF16 ? "bf16" : "fp32";
}

std::string compute_line(const ComputeRates& rates) {
  std::string text =
      "  " + std::string(name_of(rates.device)) + ", " + name_of_dtype(rates.dtype) + ": ";
  for (size_t i = 0; i < rates.products.size(); ++i) {
    const ProductRate& product = rates.products[i];
    text += (i > 0 ? ", " : "") + flops_text(product.flops) + " (width " +
            std::to_string(static_cast<int64_t>(product.width)) + ")";
  }
  return text + (rates.attention > 0.0 ? "; attention " + flops_text(rates.attention) : "") + "\n";
}

Json value_or_null(double value) {
  return value > 0.0 ? Json(value) : Json(nullptr);
}

Json to_json(const CollectiveRate& rate) {
  return {{"bytes", value_or_null(rate.bytes)},
          {"start_seconds", rate.start_seconds},
          {"start_core_seconds", rate.start_core_seconds},
          {"core_share", rate.core_share}};
}

}  // namespace

std::string format_rates(const MachineRates& rates) {
  if (!rates.known()) return "rates: not known\n";
  std::string text = "rates (" + rates.source + ")\n";
  line(text, "copies in memory", rates.copy);
  line(text, "memory, read and written", rates.dram);
  line(text, "memory made ready", rates.pin);
  line(text, "host to device", rates.link.to_device, rates.link.to_device_both);
  line(text, "device to host", rates.link.to_host, rates.link.to_host_both);
  for (const UpdateRate& update : rates.updates) {
    line(text, "update, " + std::string(name_of(update.format)), update.bytes);
  }
  line(text, "models and checkpoints, read", rates.files_read);
  line(text, "models and checkpoints, written", rates.files_written);
  for (const DriveRates& drive : rates.drives) {
    line(text, drive.directory + ", read", drive.read, drive.read_both);
    line(text, drive.directory + ", written", drive.written, drive.written_both);
  }
  for (const GroupRates& group : rates.groups) {
    const std::string ranks =
        std::to_string(group.ranks) + " ranks (" + std::string(name_of(group.device)) + "), ";
    collective_line(text, ranks + "gather", group.gather);
    collective_line(text, ranks + "reduce-scatter", group.reduce_scatter);
    collective_line(text, ranks + "all-reduce", group.all_reduce);
  }
  for (const ComputeRates& compute : rates.compute) text += compute_line(compute);
  return text;
}

Json rates_to_json(const MachineRates& rates) {
  Json json = {{"source", rates.source},
               {"copy", value_or_null(rates.copy)},
               {"dram", value_or_null(rates.dram)},
               {"pin", value_or_null(rates.pin)},
               {"to_device", value_or_null(rates.link.to_device)},
               {"to_host", value_or_null(rates.link.to_host)},
               {"to_device_both", value_or_null(rates.link.to_device_both)},
               {"to_host_both", value_or_null(rates.link.to_host_both)},
               {"files_read", value_or_null(rates.files_read)},
               {"files_written", value_or_null(rates.files_written)}};
  json["updates"] = Json::array();
  for (const UpdateRate& update : rates.updates) {
    json["updates"].push_back({{"format", name_of(update.format)},
                               {"bytes", update.bytes},
                               {"one_thread", value_or_null(update.one_thread)}});
  }
  json["drives"] = Json::array();
  for (const DriveRates& drive : rates.drives) {
    json["drives"].push_back({{"directory", drive.directory},
                              {"read", value_or_null(drive.read)},
                              {"written", value_or_null(drive.written)},
                              {"read_both", value_or_null(drive.read_both)},
                              {"written_both", value_or_null(drive.written_both)},
                              {"read_core_share", drive.read_core_share},
                              {"written_core_share", drive.written_core_share}});
  }
  json["groups"] = Json::array();
  for (const GroupRates& group : rates.groups) {
    json["groups"].push_back({{"device", name_of(group.device)},
                              {"ranks", group.ranks},
                              {"gather", to_json(group.gather)},
                              {"reduce_scatter", to_json(group.reduce_scatter)},
                              {"all_reduce", to_json(group.all_reduce)}});
  }
  json["compute"] = Json::array();
  for (const ComputeRates& compute : rates.compute) {
    Json products = Json::array();
    for (const ProductRate& product : compute.products) {
      products.push_back({{"width", product.width}, {"flops", product.flops}});
    }
    json["compute"].push_back({{"device", name_of(compute.device)},
                               {"dtype", name_of_dtype(compute.dtype)},
                               {"products", products},
                               {"attention", value_or_null(compute.attention)}});
  }
  return json;
}

}  // namespace longshore
