// `longshore_lab roofline`: the tables of docs/measurements/gpu_roofline.md, which are bytes and
// operations of a step of an 8B Llama on a GPU by the plan, and seconds estimated from stated
// rates. Nothing is run. Main thread.
#pragma once

namespace longshore {

int run_lab_roofline();

}  // namespace longshore
