#ifndef ONNX_OPS_SIGNAL_H
#define ONNX_OPS_SIGNAL_H
#endif
