/* Runs a model in the ONNX format: a table of what it is, its results as .npy, its time.
 *
 *     ./examples/onnx_run MODEL.onnx --input x=image.npy          on this CPU
 *     ./examples/onnx_run MODEL.onnx --connect URL --bench        on a server; inputs that are not given are random
 *     ./examples/onnx_run --check FOLDER                          ONNX's node tests
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "common.h"
#define ONNX_IMPLEMENTATION
#include "formats/onnx.h"
#include "onnx_check.h"
#include "onnx_model.h"

int main(int argc, char **argv) {
    static const char about[] = "Runs a model in the ONNX format, or ONNX's node tests.";
    const char *connect = NULL, *check = NULL, *out = NULL, *home = NULL, *model = NULL, *one = NULL, *inputs[64];
    bool bench = false;
    int64_t seed = 1;
    int n_inputs = 0, n = 1, result = EX_OK;
    ex_option options[] = {
        { "input", EX_TEXT, &one, "NAME=FILE", "read an input from a .npy or .pb file; may be repeated", 0, 0 },
        { "connect", EX_MAYBE, &connect, "URL", "run on this server or device", 0, 0 },
        { "home", EX_TEXT, &home, "DIR", "folder of keys and credentials", 0, 0 },
        { "out", EX_TEXT, &out, "DIR", "write each output to DIR/NAME.npy; DIR is made if it is missing", 0, 0 },
        { "seed", EX_INT, &seed, "N", "seed of the random inputs that stand in for those not given", 0, 1e9 },
        { "bench", EX_FLAG, &bench, NULL, "run for two seconds and print the time of a step", 0, 0 },
        { "check", EX_TEXT, &check, "DIR", "run a folder of ONNX node tests and compare the results", 0, 0 },
        { 0 },
    };
    for (int i = 1; i < argc; i++) /* what may stand more than once, or without a name, is taken out */
        if (!strcmp(argv[i], "--input") && i + 1 < argc && n_inputs < 64) inputs[n_inputs++] = argv[++i];
        else if (!strncmp(argv[i], "--input=", 8) && n_inputs < 64) inputs[n_inputs++] = argv[i] + 8;
        else if (i == 1 && argv[i][0] != '-') model = argv[i];
        else argv[n++] = argv[i];
    ex_operand = "MODEL.onnx ";
    ex_parse(n, argv, about, options);
    if (!model == !check) ex_usage(argv[0], "give either a model or --check DIR");
    const char *env = getenv("GENIE_DEVICES");
    if (connect && !*connect && !(env && *env)) ex_usage(argv[0], "--connect without a value needs GENIE_DEVICES");
    if (out && mkdir(out, 0777) != 0 && errno != EEXIST) ex_usage(argv[0], "--out %s: %s", out, strerror(errno));
    gn_ctx *g = gn_open(&(gn_desc){ .devices = connect && *connect ? connect : NULL, .home = home });
    if (!ex_check(g, gn_status(g), "cannot open the device")) result = EX_FAILED;
    else if (check) result = oc_check(g, check) ? EX_OK : EX_FAILED;
    else
        result = om_run(g, &(om_job){ .path = model,
                                      .out = out,
                                      .inputs = inputs,
                                      .n_inputs = n_inputs,
                                      .bench = bench,
                                      .seed = (uint64_t)seed })
                     ? EX_OK
                     : EX_FAILED;
    gn_close(g);
    return result;
}
