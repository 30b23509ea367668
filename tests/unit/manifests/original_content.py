"""Manifests of MLModelScope's agents, in the notations of both of its eras."""

from __future__ import annotations

SEED_RESNET50 = """\
name: ResNet50 # name of your model
framework:
  name: MXNet # framework for the model
  version: 1.3.0 # framework version constraint
version: 1.0
container:
  amd64:
    gpu: raiproject/carml-caffe:amd64-cpu
    cpu: raiproject/carml-caffe:amd64-gpu
  ppc64le:
    cpu: raiproject/carml-caffe:ppc64le-gpu
    gpu: raiproject/carml-caffe:ppc64le-gpu
description: >
  A residual network of 50 layers.
references:
  - https://github.com/KaimingHe/deep-residual-networks
  - https://arxiv.org/abs/1512.03385
license: unrestricted
inputs:
  - type: image
    description: the input image
    parameters:
      dimensions: [3, 224, 224]
      mean: [123.68, 116.779, 103.939]
output:
  type: feature
  description: the output label
  parameters:
    features_url: http://models.example/synsets/imagenet/synset.txt
    features_checksum: 4d234b5833aca44928065a180db3016a
model:
  graph_path: http://models.example/mxnet/resnet50/resnet50-symbol.json
  weights_path: http://models.example/mxnet/resnet50/resnet50-0000.params
  is_archive: false
  graph_checksum: 2989c88d1d6629b777949a3ae695a42e
  weights_checksum: 246423771006aaf77acf68c99852f5b5
attributes:
  kind: CNN
  training_dataset: ImageNet
  manifest_author: someone
"""

HEAD_RESNET50 = """\
name: " ResNet50_v1 "
framework:
  name: MXNet
  version: '>=1.1.0'
version: 1.0
container:
  amd64: {gpu: 'raiproject/carml-mxnet:amd64-gpu', cpu: 'raiproject/carml-mxnet:amd64-cpu'}
description: From the GluonCV model zoo.
references:
  - https://gluon-cv.mxnet.io/model_zoo/classification.html
license: unrestricted
inputs:
  - type: image
    description: the input image
    parameters:
      element_type: float32
      input_layer: data
      layout: 'CHW'
      color_mode: 'RGB'
      dimensions: [3, 224, 224]
      mean: [123.675, 116.28, 103.53]
      scale: [58.395, 57.12, 57.375]
output:
  type: classification
  description: the output label
  parameters:
    element_type: float32
    probabilities_transform: softmax
    probabilities_layer: 0
    features_url: http://models.example/synsets/imagenet/synset.txt
    features_checksum: 4d234b5833aca44928065a180db3016a
model:
  base_url: http://models.example/mxnet/gluoncv/resnet50_v1
  graph_path: "model-symbol.json "
  weights_path: model-0000.params
  is_archive:
    false
  graph_checksum:
  weights_checksum:
attributes:
  kind: CNN
  training_dataset: ImageNet
  Top1: 77.36
  Top5: 93.57
"""

TORCHSCRIPT_INCEPTION = """\
name: Inception_v3.0
framework:
    name: PyTorch
    version: 1.2
version: 1.0
container:
    amd64:
        cpu: raiproject/carml-pytorch:amd64-cpu
        gpu: raiproject/carml-pytorch:amd64-gpu
description: Inception, as a TorchScript archive.
references:
license: unrestricted
inputs:
    - type: image
      description: the input image
      parameters:
          element_type: float32
          input_layer: 0
          layout: CHW
          color_mode: RGB
          dimensions: [299]
          mean: 127.5
          scale: 127.5
          crop_method: center
          crop_ratio: 0.875
          keep_aspect_ratio: true
          interpolation: bilinear
output:
    type: classification
    parameters:
        element_type: float32
        probabilities_layer: 0
        features_url: http://models.example/synsets/imagenet/synset.txt
        features_checksum:
model:
    graph_path: https://models.example/pytorch/inceptionv3-imagenet.pt?version=2
    is_archive: false
    graph_checksum: f0372bbb562d22e64815ad84387776ce
attributes:
    kind: CNN
hidden: false
"""

SEGMENTATION = """\
name: DeepLabv3
framework: {name: PyTorch, version: 1.2}
version: 1.0
inputs:
    - type: image
      parameters:
          input_layer: 0
          layout: CHW
          mean: [123.675, 116.280, 103.530]
          scale: [58.395, 57.120, 57.375]
output:
  type: semanticsegment
  parameters:
    element_type: int64
    masks_layer: SemanticPredictions
model:
    graph_path: https://models.example/pytorch/deeplabv3.pt
"""

EVERY = (SEED_RESNET50, HEAD_RESNET50, TORCHSCRIPT_INCEPTION, SEGMENTATION)
